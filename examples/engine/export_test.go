package engine

import (
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/handoff"
)

// ParseResume is how many tokens a resume packet brings that have no state.
func ParseResume(r handoff.Resume) (int32, error) {
	b, err := parseResume(r, model.Vocab)
	if err != nil {
		return 0, err
	}
	b.finished = false
	return b.uncomputed(), nil
}
