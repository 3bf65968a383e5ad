package cmd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/handoff"
)

type groups struct {
	plugins.Cluster
	names []string
}

func (g groups) Groups(context.Context) (out []plugins.Group, err error) {
	for _, n := range g.names {
		out = append(out, plugins.Group{Name: n})
	}
	return out, nil
}

// TestUnknownGroup: of several names the one that nobody has is talked about.
func TestUnknownGroup(t *testing.T) {
	err := unknownGroup(t.Context(), groups{names: []string{"decode-0", "prefill-0"}}, []string{"decode-0", "prefil-0"}, handoff.ErrGroup)
	var h *HintError
	if !errors.As(err, &h) || !errors.Is(err, handoff.ErrGroup) || !strings.Contains(h.Hint, "did you mean prefill-0?") {
		t.Errorf("%v, %+v", err, h)
	}
}
