package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/examples/engine/front"
)

// turn gives a group another role while its engine lives: drained, the engine switches and
// attaches as another launch, to sidecars that come up in that role.
func (w *world) turn(g *dev.Running, from, to discovery.Role) {
	w.t.Helper()
	cmd := exec.CommandContext(bounded(w.t), binary, "drain", g.Name, "--config", w.Control())
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("%v %s", err, out)
	}
	if _, err := generate(bounded(w.t), g, front.Request{Mode: front.Switch, Role: string(to)}, nil); err != nil {
		w.t.Fatalf("%s: switch: %v", g.Name, err)
	}
	for rank, k := range g.Ranks {
		path := filepath.Join(k.Sidecar.Engine, "sidecar.yaml")
		b, err := os.ReadFile(path)
		if err != nil {
			w.t.Fatal(err)
		}
		next := bytes.Replace(b, []byte("role: "+from), []byte("role: "+to), 1)
		if err := os.WriteFile(path, next, 0o600); err != nil || bytes.Equal(b, next) {
			w.t.Fatalf("%v in %s", err, b)
		}
		w.kill(victim{group: func(*world) *dev.Running { return g }, rank: int32(rank)})
	}
}

// across moves one prompt from src to dst as soon as both let it, and checks its tokens.
func (w *world) across(src, dst *dev.Running, label string, p []int32) {
	w.t.Helper()
	var tokens []int32
	eventually(w.t, label+": a hand-off", func() bool {
		label += "'" // an attempt may leave its label in use for a while
		out, err := generate(bounded(w.t), src, front.Request{Tokens: p, MaxNew: maxNew, Label: label, Mode: front.Export}, nil)
		if err != nil {
			return false
		}
		tokens = nil
		in := front.Request{Tokens: p, MaxNew: maxNew, Label: label, Mode: front.Import, Manifest: out.Manifest}
		res, err := generate(bounded(w.t), dst, in, &tokens)
		return err == nil && res.Forwarded == 0
	})
	w.equal(label, p, tokens)
}

// TestRolesSwitch: a prefill and a decode group change places while their engines live.
func TestRolesSwitch(t *testing.T) {
	w := up(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid", func(o *dev.Options) { o.Restart = true })
	w.across(w.prefill, w.decode, "before", prompt(1, 40))
	one, two := w.prefill, w.decode
	w.turn(one, discovery.Prefill, discovery.Decode)
	w.turn(two, discovery.Decode, discovery.Prefill)
	w.across(two, one, "after", prompt(2, 40))
	w.across(two, one, "cached", prompt(1, 40))
	_, err := generate(bounded(t), one, front.Request{Tokens: prompt(3, 20), MaxNew: maxNew, Label: "wrong", Mode: front.Export}, nil)
	if err == nil || !strings.Contains(err.Error(), "whose role is decode") {
		t.Errorf("an export of what decodes: %v", err)
	}
}
