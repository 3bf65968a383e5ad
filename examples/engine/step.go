package engine

import (
	"encoding/json"
	"fmt"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
)

// reqID names a request in a group: rank 0 counts its own, an import has the number of
// its Reserve decision with importBit.
type reqID uint64

const importBit reqID = 1 << 63

// step is the work of one step, in the order in which every rank does it.
type step struct {
	Through uint64     `json:",omitempty"` // apply decisions up to here
	Unpin   []string   `json:",omitempty"` // exports that every rank's sidecar has let go of
	End     []reqID    `json:",omitempty"` // requests that are over: free what they hold
	Export  []exportOp `json:",omitempty"`
	Start   []startOp  `json:",omitempty"`
	Run     []runOp    `json:",omitempty"`
	Reset   bool       `json:",omitempty"` // forget all that the memory holds
	Turn    *turnOp    `json:",omitempty"` // nothing else in the step
	Stop    bool       `json:",omitempty"`
}

// startOp takes memory for a prompt. Room tokens behind it have to fit the pool some day,
// or the request could never end; Spare blocks are left to the requests that run.
type startOp struct {
	ID     reqID
	Tokens []int32
	Room   int32 `json:",omitempty"`
	Spare  int32 `json:",omitempty"`
	// Parts is the label under which chunks leave as they are computed; "": they do not.
	Parts string `json:",omitempty"`
}

// exportOp pins a request's state under a label and takes it out of the batch.
type exportOp struct {
	ID     reqID
	Label  string
	Copies int32 // how many may import it: one for each answer
}

// runOp is one run of a request.
type runOp struct {
	ID     reqID
	Prompt int32 `json:",omitempty"` // computes so many next tokens of the prompt
	// Or it computes Tokens, the newest and drafts of those behind it.
	Tokens []int32 `json:",omitempty"`
	Kept   int32   `json:",omitempty"` // first, so many tokens of the last run stay; 0: all
	// Propose drafts so many tokens behind the one of Tokens instead.
	Propose int32 `json:",omitempty"`
}

// check refuses a run that nobody means.
func (o runOp) check() error {
	switch n := len(o.Tokens); {
	case o.Prompt < 0 || o.Prompt > model.MaxChunk:
		return fmt.Errorf("%w: chunk of %d tokens", ErrDiverged, o.Prompt)
	case n > 1+model.MaxProposals || (n > 0) == (o.Prompt > 0):
		return fmt.Errorf("%w: %d tokens behind a prompt's %d", ErrDiverged, n, o.Prompt)
	case o.Kept < 0 || o.Propose < 0 || o.Propose > model.MaxProposals || o.Propose > 0 && n != 1:
		return fmt.Errorf("%w: %d tokens stay, %d drafts behind %d", ErrDiverged, o.Kept, o.Propose, n)
	}
	return nil
}

// Bounds of one step.
const (
	maxStepOps   = 4096
	maxLabelLen  = 256
	maxStepToken = front.MaxTokens + front.MaxNew // of a prompt and what was emitted behind it
)

func (s step) empty() bool {
	return s.Through == 0 && len(s.Unpin)+len(s.End)+len(s.Export)+len(s.Start)+len(s.Run) == 0 && !s.Reset && s.Turn == nil && !s.Stop
}

// decodeStep takes a step from rank 0.
func decodeStep(b []byte) (step, error) {
	var s step
	if err := json.Unmarshal(b, &s); err != nil {
		return step{}, fmt.Errorf("%w: step: %w", ErrDiverged, err)
	}
	if len(s.Unpin)+len(s.End)+len(s.Export)+len(s.Start)+len(s.Run) > maxStepOps {
		return step{}, fmt.Errorf("%w: step of more than %d operations", ErrDiverged, maxStepOps)
	}
	if err := s.Turn.check(); err != nil {
		return step{}, err
	}
	for _, o := range s.Start {
		if len(o.Tokens) < 1 || len(o.Tokens) > maxStepToken {
			return step{}, fmt.Errorf("%w: prompt of %d tokens", ErrDiverged, len(o.Tokens))
		}
		if o.Room < 0 || o.Room > maxStepToken || o.Spare < 0 || len(o.Parts) > maxLabelLen {
			return step{}, fmt.Errorf("%w: room for %d tokens beside %d blocks", ErrDiverged, o.Room, o.Spare)
		}
	}
	for _, o := range s.Export {
		if len(o.Label) > maxLabelLen || o.Copies < 1 {
			return step{}, fmt.Errorf("%w: label of %d bytes, %d copies", ErrDiverged, len(o.Label), o.Copies)
		}
	}
	for _, o := range s.Run {
		if err := o.check(); err != nil {
			return step{}, err
		}
	}
	return s, nil
}

// report is what a rank says at the end of a step.
type report struct {
	Unpinned []string `json:",omitempty"` // labels that its sidecar has let go of since the last report
	Away     string   `json:",omitempty"` // why it has no sidecar at the moment
	Down     string   `json:",omitempty"` // why it will have none any more
	Digest   uint64   // of its allocator
}

const maxReportLabels = 1 << 16

func decodeReport(b []byte) (report, error) {
	var r report
	if err := json.Unmarshal(b, &r); err != nil || len(r.Unpinned) > maxReportLabels {
		return report{}, fmt.Errorf("%w: report of %d bytes: %v", ErrDiverged, len(b), err)
	}
	return r, nil
}
