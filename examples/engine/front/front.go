// Package front is how a caller talks to the reference engine: JSON lines over rank 0's
// unix socket, one request per connection. It is no part of the engine API between an
// engine and its sidecar.
//
//	→ {"tokens":[256,72,105],"max_new":8,"mode":"full","sample":{"temperature":1,"logprobs":true}}
//	← {"token":91,"logprob":-0.25}
//	← {"done":true,"reason":"length","blocks":1,"cached":0,"prompt_tokens_forwarded":3}
package front

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
)

var (
	// ErrRequest: the request can never be served.
	ErrRequest = errors.New("front: bad request")
	// ErrBusy: too many requests wait.
	ErrBusy = errors.New("front: engine is busy")
	// ErrFailed: the engine took the request and failed it.
	ErrFailed = errors.New("front: request failed")
	// ErrProtocol: a line that is no line of this protocol.
	ErrProtocol = errors.New("front: bad line")
)

// Limits of a request.
const (
	MaxTokens = 1 << 16
	MaxNew    = 1 << 12
	MaxLabel  = 256
	maxLine   = 2 << 20
	// maxDeadline is a day in milliseconds.
	maxDeadline = int64(24 * time.Hour / time.Millisecond)
)

// Mode is what the engine does with a request.
type Mode string

const (
	Full   Mode = "full"   // prefill and decode here
	Export Mode = "export" // prefill, sample one token, hold the state, answer with the manifest
	Adopt  Mode = "adopt"  // decode what somebody else imports under this label
	Import Mode = "import" // import a manifest, then decode
	Stats  Mode = "stats"  // tell what the allocator of rank 0 holds
	Reset  Mode = "reset"  // end all requests, wait until nobody touches the memory, forget it
	Switch Mode = "switch" // end what runs, wait until nobody touches the memory, take another role
	Tell   Mode = "role"   // tell at once the role, as the reason of the end, and which requests are taken
)

// Request asks for tokens.
type Request struct {
	Tokens   []int32           `json:"tokens,omitempty"` // the prompt; Adopt does without
	MaxNew   int32             `json:"max_new"`          // tokens to emit, the first sampled one included
	Label    string            `json:"label,omitempty"`  // name of the request in every mode but Full
	Mode     Mode              `json:"mode"`
	Manifest *handoff.Manifest `json:"manifest,omitempty"` // of Import
	// Sample is how tokens are chosen, in modes Full and Export: it goes with the hand-off.
	Sample sample.Params `json:"sample,omitzero"`
	// Answer is which of the prompt's answers this request gets, from 0; Export makes all.
	Answer int32 `json:"answer,omitempty"`
	// Role is what Switch asks for: prefill, decode or both.
	Role string `json:"role,omitempty"`
	// DeadlineMS bounds the whole request in milliseconds; 0 is the engine's default.
	DeadlineMS int64 `json:"deadline_ms,omitempty"`
}

// Check reports a request that no engine can serve.
func (r Request) Check() error {
	var why string
	switch {
	case (r.Role != "") != (r.Mode == Switch) || len(r.Role) > len("prefill"):
		why = fmt.Sprintf("role %.40q: mode switch needs one, other modes take none", r.Role)
	case r.Mode == Reset || r.Mode == Switch:
		if r.bare() && r.DeadlineMS >= 0 && r.DeadlineMS <= maxDeadline {
			return nil
		}
		why = fmt.Sprintf("mode %s takes a deadline alone", r.Mode)
	case r.Mode == Stats || r.Mode == Tell:
		if r.bare() && r.DeadlineMS == 0 {
			return nil
		}
		why = fmt.Sprintf("mode %s takes nothing else", r.Mode)
	case r.Mode != Full && r.Mode != Export && r.Mode != Adopt && r.Mode != Import:
		why = fmt.Sprintf("mode %.40q: want full, export, adopt, import, stats, reset, switch or role", string(r.Mode))
	case len(r.Tokens) > MaxTokens:
		why = fmt.Sprintf("tokens: %d, at most %d", len(r.Tokens), MaxTokens)
	case len(r.Tokens) == 0 && r.Mode != Adopt:
		why = fmt.Sprintf("tokens: mode %s needs a prompt", r.Mode)
	case r.MaxNew < 1 || r.MaxNew > MaxNew:
		why = fmt.Sprintf("max_new %d: want 1 to %d", r.MaxNew, MaxNew)
	case len(r.Label) > MaxLabel:
		why = fmt.Sprintf("label: %d bytes, at most %d", len(r.Label), MaxLabel)
	case !utf8.ValidString(r.Label):
		why = "label: not UTF-8"
	case r.Label == "" && r.Mode != Full:
		why = fmt.Sprintf("label: mode %s needs one", r.Mode)
	case (r.Manifest != nil) != (r.Mode == Import):
		why = "manifest: mode import needs one, other modes take none"
	case r.DeadlineMS < 0 || r.DeadlineMS > maxDeadline:
		why = fmt.Sprintf("deadline_ms %d: want 0 to a day", r.DeadlineMS)
	default:
		why = r.sampling()
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrRequest, why)
}

// bare says that nothing is asked for but the mode.
func (r Request) bare() bool {
	return len(r.Tokens) == 0 && r.Label == "" && r.Manifest == nil && r.MaxNew == 0 && r.Sample.IsZero() && r.Answer == 0
}

// sampling says what is wrong with Sample and Answer, "" if nothing is.
func (r Request) sampling() string {
	answers := max(r.Sample.Answers, 1)
	switch r.Mode {
	case Import, Adopt:
		if !r.Sample.IsZero() {
			return fmt.Sprintf("sample: mode %s takes none, the hand-off brings it", r.Mode)
		}
		answers = sample.MaxAnswers
	case Export:
		if r.Answer != 0 {
			return "answer: mode export makes all of them"
		}
	}
	if r.Answer < 0 || r.Answer >= answers {
		return fmt.Sprintf("answer %d: want 0 to %d", r.Answer, answers-1)
	}
	if err := r.Sample.Check(); err != nil {
		return err.Error()
	}
	return ""
}

// Result ends a request that was served.
type Result struct {
	Reason    string            `json:"reason"`                  // length, eos, stop, exported
	Blocks    int32             `json:"blocks"`                  // of the request's table at its end
	Cached    int32             `json:"cached"`                  // prompt tokens found in the prefix cache
	Forwarded int32             `json:"prompt_tokens_forwarded"` // prompt tokens that this engine computed
	Preempted int32             `json:"preempted,omitempty"`     // how often it gave its memory back and was computed anew
	Drafted   int32             `json:"drafted,omitempty"`       // tokens that were drafted and computed
	Accepted  int32             `json:"accepted,omitempty"`      // of them, those that came true
	Manifest  *handoff.Manifest `json:"manifest,omitempty"`      // of Export
	Pool      *Pool             `json:"pool,omitempty"`          // of Stats
	Closed    string            `json:"closed,omitempty"`        // of Tell: the name of the error that new requests end with, as docs/PLUGINS.md lists them
	Room      int32             `json:"room,omitempty"`          // of Tell: tokens of prompt and answer that the pool can hold
	Block     int32             `json:"block_tokens,omitempty"`  // of Tell: tokens of a block
}

// Told is what an engine tells of itself.
type Told struct {
	Role   string // prefill, decode or both
	Closed error  // with which new requests end at the moment; nil: they are taken
	Room   int32  // tokens of prompt and answer that the pool can hold; 0: it does not tell
	Block  int32  // tokens of a block; 0: it does not tell
}

// Pool is what rank 0's allocator holds. Blocks that are cached and held by nobody are free.
type Pool struct {
	FreeBlocks int32 `json:"free_blocks"`
	FreeSlots  int32 `json:"free_slots"`
	Exports    int32 `json:"exports"` // held for importers
	Imports    int32 `json:"imports"` // reserved, quarantined, or admitted and not yet adopted
}

// Event is one thing that happens to a request: a token, or its end by Result or Err.
type Event struct {
	Token   int32
	Logprob *float32 // of Token, when the request samples with logprobs
	Result  *Result
	Err     error
}

// line is what the engine writes.
type line struct {
	Token   *int32   `json:"token,omitempty"`
	Logprob *float32 `json:"logprob,omitempty"`
	Done    bool     `json:"done,omitempty"`
	*Result
	Error string `json:"error,omitempty"`
	Name  string `json:"name,omitempty"`  // of the error, as docs/PLUGINS.md lists them
	Never bool   `json:"never,omitempty"` // the error is ErrRequest, whatever its name: nothing helps but another request
}

// failure is the line of an error.
func failure(err error) line {
	name := errs.Name(err)
	switch {
	case name != "":
	case errors.Is(err, ErrBusy):
		name = errs.Name(handoff.ErrCapacity)
	case errors.Is(err, ErrRequest):
		name = errs.Name(handoff.ErrBound)
	}
	return line{Error: err.Error(), Name: name, Never: errors.Is(err, ErrRequest)}
}
