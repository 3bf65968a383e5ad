package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/internal/need"
)

// TestHostPlugin runs the control planes of examples/hostplugin, as processes that know
// nothing but the plugin's command line.
func TestHostPlugin(t *testing.T) {
	for name, command := range map[string]func(*testing.T) []string{
		"go": func(t *testing.T) []string { return []string{compile(t, "../examples/hostplugin")} },
		"python": func(t *testing.T) []string {
			return []string{python(t), "../examples/hostplugin/python/hostplugin.py"}
		},
		"python mtls": func(t *testing.T) []string {
			return []string{python(t), "../examples/hostplugin/python/hostplugin.py", "--mtls"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			program := command(t)
			w := up(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid")
			w.broughtBy(program, "by-"+strings.ReplaceAll(name, " ", "-"), w.pluginArgs())
		})
	}
}

// broughtBy runs a program of examples/hostplugin, which brings a request over by the
// plugin of a command line.
func (w *world) broughtBy(program []string, label string, plugin []string) {
	t := w.t
	t.Helper()
	ctx, tokens := bounded(t), prompt(len(label), 40)
	p, err := json.Marshal(tokens)
	if err != nil {
		t.Fatal(err)
	}
	man, err := w.export(ctx, w.prefill, label, tokens)
	if err != nil {
		t.Fatal(err)
	}
	host := exec.CommandContext(ctx, program[0], slices.Concat(program[1:], []string{w.prefill.Name, w.decode.Name, string(p)}, plugin)...)
	host.Stderr = w.log
	said, err := host.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, said, w.log)
	}
	if want := label + " went from " + w.prefill.Name + " to " + w.decode.Name; !strings.HasPrefix(string(said), want) {
		t.Fatalf("it said %q, want %q", said, want)
	}
	var got []int32
	if _, err := generate(ctx, w.decode, front.Request{MaxNew: maxNew, Label: man.Label, Mode: front.Adopt}, &got); err != nil {
		t.Fatal(err)
	}
	w.equal(label, tokens, got)
}

// compile builds a program of this module.
func compile(t *testing.T, dir string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(dir))
	if b, err := exec.Command("go", "build", "-o", out, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return out
}

// python is a script that runs Python with gRPC and the stubs of the plugin's services.
func python(t *testing.T) string {
	t.Helper()
	return need.Python(t, "../proto", "common/v1/common.proto", "control/v1/control.proto", "plugin/v1/plugin.proto")
}
