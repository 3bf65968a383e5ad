package worker

import (
	"fmt"
	"slices"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// Request is what Dynamo's preprocessor asks of a worker: what of it counts here. A field that
// is null is as one that is not there.
type Request struct {
	Tokens   []int32        `json:"token_ids"`
	Stop     StopConditions `json:"stop_conditions"`
	Sampling Sampling       `json:"sampling_options"`
	Output   OutputOptions  `json:"output_options"`
	Prefill  *PrefillResult `json:"prefill_result,omitempty"`
}

// StopConditions end a request. Stop words are text: the frontend, which has the tokenizer,
// looks for them and stops the call.
type StopConditions struct {
	MaxTokens *int32  `json:"max_tokens,omitempty"` // nil: the worker's own limit
	MinTokens *int32  `json:"min_tokens,omitempty"` // before which only MaxTokens ends it
	IgnoreEOS *bool   `json:"ignore_eos,omitempty"`
	IDs       []int32 `json:"stop_token_ids,omitempty"`
	Visible   []int32 `json:"stop_token_ids_visible,omitempty"`
	Hidden    []int32 `json:"stop_token_ids_hidden,omitempty"` // that the frontend does not show
}

// Sampling is how tokens are chosen; what is nil is the engine's own. Python's floats have 64
// bits in msgpack.
type Sampling struct {
	N           *int32   `json:"n,omitempty"`
	Temperature *float64 `json:"temperature,omitempty"`
	TopK        *int32   `json:"top_k,omitempty"`
	TopP        *float64 `json:"top_p,omitempty"`
	Seed        *int64   `json:"seed,omitempty"`

	// What no engine here does.
	BestOf     *int32   `json:"best_of,omitempty"`
	MinP       *float64 `json:"min_p,omitempty"`
	Presence   *float64 `json:"presence_penalty,omitempty"`
	Frequency  *float64 `json:"frequency_penalty,omitempty"`
	Repetition *float64 `json:"repetition_penalty,omitempty"`
	Beam       *bool    `json:"use_beam_search,omitempty"`
	Guided     *Guided  `json:"guided_decoding,omitempty"`
}

// Guided is a grammar, of which it counts that there is one.
type Guided struct{}

// OutputOptions say what is told of each token.
type OutputOptions struct {
	Logprobs *int32 `json:"logprobs,omitempty"`        // nil: none; 0, 1: of the token that was chosen
	Prompt   *int32 `json:"prompt_logprobs,omitempty"` // of the prompt's tokens
}

// PrefillResult is what the prefill worker answered.
type PrefillResult struct {
	Params dynamo.Params `json:"disaggregated_params"`
}

// Limits of a request.
const (
	maxTokens = 1 << 20
	maxNew    = 1 << 12
	maxStops  = 16 // tokens that end it
)

// job reads a request. What it asks and is not done is refused, since an answer that
// passes over it is wrong; what prefill answered comes with the refusal too.
func (w *Worker) job(c plane.Call) (Job, *PrefillResult, error) {
	var q Request
	if err := c.Decode(&q); err != nil {
		return Job{}, nil, err
	}
	j := Job{Label: label(c), Tokens: q.Tokens, MaxNew: or(q.Stop.MaxTokens, w.open(len(q.Tokens))), MinNew: or(q.Stop.MinTokens, 0),
		IgnoreEOS: or(q.Stop.IgnoreEOS, false), Stops: q.Stop.all(), Sampling: q.Sampling, Logprobs: q.Output.Logprobs != nil}
	why := q.Sampling.refusal()
	switch {
	case len(q.Tokens) == 0 || len(q.Tokens) > maxTokens:
		why = fmt.Sprintf("token_ids: %d: want 1 to %d", len(q.Tokens), maxTokens)
	case j.MaxNew < 1 || j.MaxNew > maxNew:
		why = fmt.Sprintf("stop_conditions.max_tokens: %d: want 1 to %d", j.MaxNew, maxNew)
	case j.MinNew < 0 || j.MinNew > maxNew:
		why = fmt.Sprintf("stop_conditions.min_tokens: %d: want 0 to %d", j.MinNew, maxNew)
	case len(j.Stops) > maxStops:
		why = fmt.Sprintf("stop_conditions: %d stop tokens, at most %d", len(j.Stops), maxStops)
	case or(q.Output.Logprobs, 0) < 0 || or(q.Output.Logprobs, 0) > 1:
		why = fmt.Sprintf("output_options.logprobs: %d: want 0 or 1: other tokens than the chosen one have none", *q.Output.Logprobs)
	case q.Output.Prompt != nil:
		why = "output_options.prompt_logprobs: a prompt's tokens have none"
	}
	if why != "" {
		return j, q.Prefill, plane.Fault(wire.InvalidArgument, "%s", why)
	}
	return j, q.Prefill, w.others.tooLong(len(q.Tokens)+int(or(q.Stop.MaxTokens, 1)), time.Now())
}

// open is the limit of an answer that was given none, behind a prompt: what fits the engine.
func (w *Worker) open(prompt int) int32 {
	if room := w.room.Load(); room > 0 {
		return max(min(w.cfg.MaxNew, room-int32(min(prompt, maxTokens))), 1)
	}
	return w.cfg.MaxNew
}

// all are the tokens that end an answer, once each.
func (s StopConditions) all() []int32 {
	ids := slices.Concat(s.IDs, s.Visible, s.Hidden)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// refusal says what of s is not done, "" if all of it is.
func (s Sampling) refusal() string {
	switch {
	case or(s.N, 1) != 1 || or(s.BestOf, 1) != 1:
		return fmt.Sprintf("sampling_options.n: %d, best_of: %d: one answer for each call", or(s.N, 1), or(s.BestOf, 1))
	case or(s.MinP, 0) != 0:
		return "sampling_options.min_p: not done here: want 0, or top_p"
	case or(s.Presence, 0) != 0 || or(s.Frequency, 0) != 0 || or(s.Repetition, 1) != 1:
		return "sampling_options: presence_penalty, frequency_penalty and repetition_penalty are not done here: want 0, 0 and 1"
	case or(s.Beam, false):
		return "sampling_options.use_beam_search: not done here"
	case s.Guided != nil:
		return "sampling_options.guided_decoding: not done here"
	}
	return ""
}

// or is what p points to, or else d.
func or[T any](p *T, d T) T {
	if p == nil {
		return d
	}
	return *p
}
