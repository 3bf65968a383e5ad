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

// spoken is a build of a program that speaks other versions: a made-up next one, alone or
// with today's.
func spoken(t *testing.T, program, plugin, control string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "built")
	const at = "-X github.com/batonkv/baton/proto/version."
	if b, err := exec.Command("go", "build", "-ldflags", at+"plugin="+plugin+" "+at+"control="+control, "-o", out, program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return out
}

// TestVersions has builds of two releases meet: host and plugin, plugin and sidecar. They
// speak what they have in common, and without it say which versions each has.
func TestVersions(t *testing.T) {
	next, only := spoken(t, "..", "1,2", "1,2"), spoken(t, "..", "2", "2")
	mixed := spoken(t, "..", "1", "2")
	old := up(t, "tp=1,role=prefill+tp=1,role=decode", "attention")
	later := up(t, "tp=1,role=prefill+tp=1,role=decode", "attention", func(o *dev.Options) { o.Binary = next })
	file, _ := old.sidecarFile("ahead")
	old.sidecarOf(only, file)
	for _, c := range []struct {
		name, plugin string
		w            *world
		group        string
		err          error
	}{
		{"old plugin, old sidecar", binary, old, "decode-0", nil},
		{"old plugin, next sidecar", binary, later, "decode-0", nil},
		{"next plugin, old sidecar", next, old, "decode-0", nil},
		{"next plugin, next sidecar", next, later, "decode-0", nil},
		{"next plugin, a sidecar that left the old plugin behind", next, old, "ahead", nil},
		{"a sidecar that left the old plugin behind", binary, old, "ahead", handoff.ErrVersion},
		{"a plugin that left the old host behind", only, old, "decode-0", handoff.ErrVersion},
		{"a plugin that left the old sidecar behind", mixed, old, "decode-0", handoff.ErrVersion},
		{"the same plugin, next sidecar", mixed, later, "decode-0", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := bounded(t)
			args := c.w.pluginArgs()
			args[0] = c.plugin
			h, err := host.Open(ctx, host.Config{Command: args, Stderr: c.w.log})
			if err == nil {
				defer h.Close()
				_, err = h.Cluster().Describe(ctx, c.group)
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

// TestHostVersions has hosts of the next release meet plugins of both, as processes: the
// builds of a host that speaks both versions, and of one that has left the old one behind.
func TestHostVersions(t *testing.T) {
	const program = "../examples/hostplugin"
	next, only := spoken(t, program, "1,2", "1,2"), spoken(t, program, "2", "2")
	later := spoken(t, "..", "1,2", "1,2")
	for name, c := range map[string]struct{ host, plugin, refuses string }{
		"next host, old plugin":                        {next, binary, ""},
		"next host, next plugin":                       {next, later, ""},
		"a host that left the old behind, next plugin": {only, later, ""},
		"a host that left the old plugin behind":       {only, binary, "this host speaks version 2 of the plugin's protocol and the plugin 1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := up(t, "tp=1,role=prefill+tp=1,role=decode", "attention")
			plugin := append([]string{c.plugin}, w.pluginArgs()[1:]...)
			if c.refuses == "" {
				w.broughtBy([]string{c.host}, "by-another-release", plugin)
				return
			}
			out, err := exec.CommandContext(bounded(t), c.host, append([]string{w.prefill.Name, w.decode.Name, "[1]"}, plugin...)...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.refuses) {
				t.Errorf("%v: %s, want %q", err, out, c.refuses)
			}
		})
	}
}
