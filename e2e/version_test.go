package e2e

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/plugins/host"
	"github.com/batonkv/baton/sidecar/handoff"
)

// spoken is a build that speaks other versions: a made-up next one, alone or with today's.
func spoken(t *testing.T, plugin, control string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "baton")
	const at = "-X github.com/batonkv/baton/proto/version."
	if b, err := exec.Command("go", "build", "-ldflags", at+"plugin="+plugin+" "+at+"control="+control, "-o", out, "..").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return out
}

// TestVersions has builds of two releases meet: host and plugin, plugin and sidecar. They
// speak what they have in common, and without it say which versions each has.
func TestVersions(t *testing.T) {
	next, only := spoken(t, "1,2", "1,2"), spoken(t, "2", "2")
	mixed := spoken(t, "1", "2")
	old := up(t, "tp=1,role=prefill+tp=1,role=decode", "attention")
	later := up(t, "tp=1,role=prefill+tp=1,role=decode", "attention", func(o *dev.Options) { o.Binary = next })
	for _, c := range []struct {
		name, plugin string
		w            *world
		err          error
	}{
		{"old plugin, old sidecar", binary, old, nil},
		{"old plugin, next sidecar", binary, later, nil},
		{"next plugin, old sidecar", next, old, nil},
		{"next plugin, next sidecar", next, later, nil},
		{"a plugin that left the old host behind", only, old, handoff.ErrVersion},
		{"a plugin that left the old sidecar behind", mixed, old, handoff.ErrVersion},
		{"the same plugin, next sidecar", mixed, later, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := bounded(t)
			args := c.w.pluginArgs()
			args[0] = c.plugin
			h, err := host.Open(ctx, host.Config{Command: args, Stderr: c.w.log})
			if err == nil {
				defer h.Close()
				_, err = h.Cluster().Describe(ctx, c.w.decode.Name)
			}
			if !errors.Is(err, c.err) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			if c.err != nil && (!strings.Contains(err.Error(), "1") || !strings.Contains(err.Error(), "2")) {
				t.Errorf("%v does not name both versions", err)
			}
		})
	}
}
