package engine

import (
	"errors"

	"github.com/batonkv/baton/sidecar/handoff"
)

// poll takes what a rank other than 0 hears from its sidecar.
func (r *Rank) poll() {
	if r.session == nil {
		return
	}
	for _, m := range r.session.Poll(nil) {
		r.hear(m)
	}
	r.look()
}

// look notes how this rank stands with its sidecar.
func (r *Rank) look() {
	r.away = ""
	if err := r.session.Away(); err != nil {
		r.away = err.Error()
	}
	if err := r.session.Err(); err != nil && r.down == "" {
		r.down = err.Error()
	}
}

// hear takes the messages that concern every rank.
func (r *Rank) hear(m handoff.ToEngine) {
	switch m := m.(type) {
	case handoff.UnpinExport:
		r.letGo(m.Label)
	case handoff.Failed:
		if !errors.Is(m.Err, handoff.ErrGone) { // else Free is on its way, and the label may be in use anew
			r.letGo(m.Label) // an export that this rank's sidecar did not pin
		}
	}
}

// letGo notes that this rank's sidecar holds no pin of label. The memory is freed when
// all ranks' sidecars have let go, in a step.
func (r *Rank) letGo(label string) {
	if r.exports[label] != nil || r.growing[label] != nil {
		r.unpinned = append(r.unpinned, label)
	}
}
