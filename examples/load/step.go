package load

import (
	"encoding/json"
	"fmt"
	"time"
)

// step is what every rank does alike, in the order of the fields.
type step struct {
	Through uint64    `json:",omitempty"` // apply decisions up to here
	Unpin   []string  `json:",omitempty"` // exports that every rank's sidecar has let go of
	Start   []startOp `json:",omitempty"` // prompts to prefill and export, until one finds no memory
	Compute bool      `json:",omitempty"` // the next of every prompt that leaves in parts
	Advance bool      `json:",omitempty"` // decode one token of every live request
	Stop    bool      `json:",omitempty"`
}

// startOp is one prompt to prefill and export.
type startOp struct {
	Label    string
	Prompt   Prompt
	Finished bool          `json:",omitempty"`
	Copies   int32         `json:",omitempty"`
	MaxHold  time.Duration `json:",omitempty"`
}

// maxStarts bounds the prompts of one step.
const maxStarts = 64

func (s step) empty() bool {
	return s.Through == 0 && len(s.Unpin)+len(s.Start) == 0 && !s.Compute && !s.Advance
}

// decodeStep takes a step from rank 0.
func decodeStep(b []byte) (step, error) {
	var s step
	if err := json.Unmarshal(b, &s); err != nil {
		return step{}, fmt.Errorf("%w: step: %w", ErrDiverged, err)
	}
	if len(s.Start) > maxStarts {
		return step{}, fmt.Errorf("%w: step that starts %d prompts", ErrDiverged, len(s.Start))
	}
	for _, o := range s.Start {
		if err := o.Prompt.Check(); err != nil {
			return step{}, fmt.Errorf("%w: step: %w", ErrDiverged, err)
		}
	}
	return s, nil
}

// report is what a rank says at the end of a step.
type report struct {
	LetGo  []string `json:",omitempty"` // labels whose pin its sidecar gave up
	Wrong  []string `json:",omitempty"` // what its memory does not hold as it must
	Digest uint64   // of its allocator
}
