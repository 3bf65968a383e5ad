package machine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// TestUnequalInstances: a rank under another instance waits, whoever attached first; the leader
// says so once, and to who asks for anything of the group.
func TestUnequalInstances(t *testing.T) {
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		w := pair(t, 2, 1)
		p, one := w.at("p", 0), w.at("p", 1)
		for r := range 2 {
			n := w.at("p", r)
			n.step(EngineDown{n.eng.session})
		}
		w.run()
		p.refused = nil
		for _, r := range order {
			n := w.at("p", r)
			a := n.eng.attach
			a.Instance += handoff.Instance(1 + r)
			n.attach(a)
			w.run()
		}
		if got := p.m.Strangers(); !slices.Equal(got, []layout.Rank{1}) {
			t.Errorf("%v: strangers %v", order, got)
		}
		if len(p.refused) != 1 || p.refused[0].Why != Launch || p.refused[0].Peer != one.self {
			t.Errorf("%v: refused %+v", order, p.refused)
		}
		p.eng.say(p, handoff.Export{Label: "r", Blocks: []int32{1}, Slot: 1, Tokens: 4, Position: 4})
		w.run()
		f, ok := p.eng.got[len(p.eng.got)-1].(handoff.Failed)
		if !ok || !errors.Is(f.Err, handoff.ErrNotReady) || !strings.Contains(f.Err.Error(), "ranks [1] are here under another instance") {
			t.Errorf("%v: %+v", order, p.eng.got)
		}
		one.step(EngineDown{one.eng.session})
		w.run()
		a := one.eng.attach
		a.Instance = p.eng.attach.Instance
		one.attach(a)
		w.run()
		if len(p.m.Strangers()) > 0 || !p.m.Status().Ready || len(p.refused) != 1 {
			t.Errorf("%v: %+v, refused %+v", order, p.m.Status(), p.refused)
		}
	}
}

// TestImportOfAnotherRank: who can never be answered is told so, and not to ask again.
func TestImportOfAnotherRank(t *testing.T) {
	w := pair(t, 1, 2)
	man := w.export("p", "r1", 20)
	d := w.at("d", 1)
	d.eng.say(d, handoff.Import{Label: "r1", Manifest: man, Tokens: make([]int32, 20)})
	w.run()
	f, ok := d.eng.got[len(d.eng.got)-1].(handoff.Failed)
	if !ok || !errors.Is(f.Err, handoff.ErrRole) || !f.SourceSafe || errors.Is(f.Err, handoff.ErrNotReady) {
		t.Errorf("%+v", d.eng.got)
	}
}
