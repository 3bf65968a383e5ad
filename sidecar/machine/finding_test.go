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

// Groups that hold a state in types that no copier converts are told before the source
// is asked. Other types differ freely.
func TestUnequalTypes(t *testing.T) {
	for _, c := range []struct {
		dtype layout.DType
		says  []string
	}{
		{layout.BF16, nil},
		{layout.F8E4M3, []string{`"ssm"`, "fp32 in group p", "fp8_e4m3 in group d", "launch both groups"}},
	} {
		w := pair(t, 2, 1)
		man := w.export("p", "r1", 20)
		d := w.at("d", 0)
		d.step(EngineDown{d.eng.session})
		a := d.eng.attach
		a.Instance++
		a.Shards = slices.Clone(a.Shards)
		a.Shards[1].DType, a.Shards[1].View.Unit, a.Shards[1].View.Elem = c.dtype, 16*c.dtype.Size(), c.dtype.Size()
		d.attach(a)
		w.run()
		w.advance(time.Second) // sessions ended with the engine
		clear(w.sent)
		call := w.importStart("d", man)
		w.run()
		r := w.ended(call)
		if c.says == nil {
			if r.Err != nil || w.sent["Open"] != 1 {
				t.Errorf("%v: %v, sent %v", c.dtype, r.Err, w.sent)
			}
			continue
		}
		if !errors.Is(r.Err, handoff.ErrPlan) {
			t.Fatal(r.Err)
		}
		for _, word := range c.says {
			if !strings.Contains(r.Err.Error(), word) {
				t.Errorf("%v: does not say %s", r.Err, word)
			}
		}
		if w.sent["Open"] != 0 || w.sent["Decision"] != 0 {
			t.Errorf("sent %v", w.sent)
		}
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

// An Open that waits for a geometry ends with that question: answered when the geometry comes,
// also when an import from the same group gave up meanwhile, and refused when it is of no use.
func TestOpenEndsWithItsQuestion(t *testing.T) {
	w := pair(t, 1, 1)
	p, d := w.at("p", 0), w.at("d", 0)
	man := w.export("p", "r1", 20)
	first := w.importStart("p", w.export("d", "r2", 20))
	w.run()
	if r := w.ended(first); r.Err != nil {
		t.Fatal(r.Err)
	}
	asks := func(launch handoff.Instance, a handoff.Attempt) {
		t.Helper()
		imp := d.importer()
		imp.Instance = launch
		p.step(FromPeer{d.self, handoff.Open{ID: man.ID, Key: man.Key, Importer: imp, Attempt: a}})
		if l := p.m.Load(); l.Opens != 1 {
			t.Fatalf("launch %d: %+v, want an Open that waits", launch, l)
		}
	}
	var kept handoff.Opened // of p's own import
	var told []handoff.Opened
	theirs := w.export("d", "r3", 20)
	w.drop = func(from, to handoff.Member, m handoff.PeerMessage) bool {
		if o, is := m.(handoff.Opened); is && to == p.self {
			kept = o
		} else if is {
			told = append(told, o)
		}
		_, open := m.(handoff.Open)
		return !open && from != to
	}
	second := w.importStart("p", theirs)
	w.run()
	asks(901, 1)
	p.step(FromPeer{d.self, kept})
	if r := w.ended(second); !errors.Is(r.Err, handoff.ErrGone) {
		t.Fatalf("an answer while the geometry is asked anew: %v", r.Err)
	}
	g := d.m.lead.roster.Geometry
	g.Instance = 901
	p.step(FromPeer{d.self, g})
	w.run()
	if l := p.m.Load(); l.Opens != 0 || len(told) != 1 {
		t.Errorf("after the geometry: %+v, told %+v", l, told)
	}
	asks(902, 2)
	p.step(FromPeer{d.self, handoff.Geometry{}})
	w.run()
	if l := p.m.Load(); l.Opens != 0 || len(told) != 2 || told[1].Status != handoff.Refused {
		t.Errorf("after a geometry of no use: %+v, told %+v", l, told)
	}
}

// Geometry is asked anew for each launch of a group, also when an answer before was of no
// use to anybody: an importer that was launched twice meanwhile is not refused.
func TestGeometryOfEachLaunch(t *testing.T) {
	w := pair(t, 1, 1)
	c := w.importStart("d", w.export("p", "r1", 40))
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
	p, d := w.at("p", 0), w.at("d", 0)
	for n := handoff.Instance(900); n < 903; n++ {
		if g := p.m.known(d.self, n); g != nil {
			t.Fatalf("launch %d is known before it was asked for", n)
		}
		g := d.m.lead.roster.Geometry
		g.Instance = n
		p.step(FromPeer{d.self, g})
	}
	if g := p.m.known(d.self, 902); g == nil || g.geometry.Instance != 902 {
		t.Errorf("%+v", g)
	}
	_ = p.m.known(d.self, 903)
	g := d.m.lead.roster.Geometry
	g.Instance = 902
	p.step(FromPeer{d.self, g})
	if g := p.m.known(d.self, 903); g == nil || g.geometry.Instance == 903 {
		t.Errorf("an answer of another launch does not stand: %+v", g)
	}
}

// An export that meets a Free of its label is refused as gone, whatever else is wrong with
// it: for the engine that error alone says that Free gives the memory back.
func TestFreedLabelIsGone(t *testing.T) {
	w := pair(t, 1, 1)
	p := w.at("p", 0)
	p.m.engine.freeing["r1"] = 7
	p.step(FromEngine{p.eng.session, handoff.Export{Label: "r1", Slot: 0, Tokens: 40, Position: 3}})
	w.run()
	f, ok := p.eng.got[len(p.eng.got)-1].(handoff.Failed)
	if !ok || !errors.Is(f.Err, handoff.ErrGone) {
		t.Errorf("%+v", p.eng.got)
	}
}
