package machine

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// Groups that hold a state in different types are told before the source is asked.
func TestUnequalTypes(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "r1", 20)
	d := w.at("d", 0)
	d.step(EngineDown{d.eng.session})
	a := d.eng.attach
	a.Instance++
	a.Shards = slices.Clone(a.Shards)
	a.Shards[1].DType, a.Shards[1].View.Unit, a.Shards[1].View.Elem = layout.BF16, 32, 2
	d.attach(a)
	w.run()
	w.advance(time.Second) // sessions ended with the engine
	clear(w.sent)
	c := w.importStart("d", man)
	w.run()
	r := w.ended(c)
	if !errors.Is(r.Err, handoff.ErrPlan) {
		t.Fatal(r.Err)
	}
	for _, word := range []string{`"ssm"`, "fp32 in group p", "bf16 in group d", "launch both groups"} {
		if !strings.Contains(r.Err.Error(), word) {
			t.Errorf("%v: does not say %s", r.Err, word)
		}
	}
	if w.sent["Open"] != 0 || w.sent["Decision"] != 0 {
		t.Errorf("sent %v", w.sent)
	}
}

// An import of a group that discovery never showed says so.
func TestUnlistedGroup(t *testing.T) {
	w := pair(t, 1, 1)
	man := w.export("p", "r1", 20)
	d := w.at("d", 0)
	man.ID.Group = "elsewhere"
	c := w.importStart("d", man)
	w.run()
	w.advance(d.m.cfg.Deadline)
	r := w.ended(c)
	if !errors.Is(r.Err, handoff.ErrDeadline) || !strings.Contains(r.Err.Error(), "discovery shows no sidecar of group elsewhere") {
		t.Fatal(r.Err)
	}
}

// An Open that outlives its session waits for nothing: the geometry that it needs is
// asked of nobody.
func TestOpenOutlivesItsSession(t *testing.T) {
	w := pair(t, 1, 1)
	man := w.export("p", "r1", 16)
	p, d := w.at("p", 0), w.at("d", 0)
	imp := handoff.Importer{Group: "d", Instance: d.eng.attach.Instance, Leader: d.self.Incarnation}
	p.step(FromPeer{d.self, handoff.Open{ID: man.ID, Key: man.Key, Importer: imp, Attempt: 1}})
	if l := p.m.Load(); l.Opens != 0 {
		t.Errorf("%+v after an Open without a session", l)
	}
	w.importStart("d", man)
	w.run()
	if l := d.m.Load(); l.Imports != 0 || len(d.eng.admitted) != 1 {
		t.Errorf("%+v, %d admitted: the geometry is not asked any more", l, len(d.eng.admitted))
	}
}
