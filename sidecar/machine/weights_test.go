package machine

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/engine/blockhash"
	"github.com/batonkv/baton/sidecar/handoff"
)

// setWeights makes the control call at a group's leader.
func (w *world) setWeights(group string, rank int, epoch uint64) Call {
	w.lastC++
	w.at(group, rank).step(SetWeightsEpoch{Call: w.lastC, Epoch: epoch})
	return w.lastC
}

func (w *world) exportOf(label string, epoch uint64, salt handoff.Salt) handoff.Manifest {
	w.change = func(e *handoff.Export) { e.WeightsEpoch, e.Salt = epoch, salt }
	defer func() { w.change = nil }()
	return w.export("p", label, 40)
}

func TestWeightsAreCompared(t *testing.T) {
	w := pair(t, 2, 2)
	man := w.exportOf("r1", 0, handoff.Salt{})
	set := w.setWeights("d", 0, 7)
	w.run()
	c := w.importStart("d", man)
	w.run()
	d := w.at("d", 0)
	if r := w.ended(c); w.ended(set).Err != nil || !errors.Is(r.Err, handoff.ErrWeights) || d.eng.reserves != 0 || !d.notices[len(d.notices)-1].SourceSafe {
		t.Fatalf("set %v, import %v, %d reserves", w.ended(set).Err, r.Err, d.eng.reserves)
	}
	w.setWeights("p", 0, 7)
	w.run()
	c = w.importStart("d", w.exportOf("r2", 7, handoff.Salt{}))
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
}

// Under policy allow state outlives a change of weights, and hashes do not tell weights
// apart.
func TestWeightsAllowed(t *testing.T) {
	w := newWorld(t)
	w.weights = handoff.WeightsAllow
	w.group("p", 2)
	w.group("d", 1)
	man := w.exportOf("r1", 0, handoff.Salt{})
	w.setWeights("p", 0, 3)
	w.setWeights("d", 0, 9)
	w.run()
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
	h, _ := blockhash.Hashes(make([]int32, 40), 16, blockhash.Salt{Model: "test"})
	if got := w.at("d", 0).eng.reserved[0].Hashes; !slices.Equal(got, h) {
		t.Errorf("hashes %v, want %v", got, h)
	}
}

// A change drops what is not decided, comes in the group's order, and ends what the old
// weights made.
func TestSetWeightsEpoch(t *testing.T) {
	w := pair(t, 2, 2)
	man := w.exportOf("r1", 0, handoff.Salt{})
	p := w.at("p", 0)
	w.onPull = func(*node, Pull) error { return errStuck }
	c := w.importStart("d", man)
	w.run()
	w.setWeights("d", 0, 1)
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrWeights) {
		t.Fatal(r.Err)
	}
	p.step(FromEngine{p.eng.session, handoff.Announce{Label: "r2"}})
	set := w.setWeights("p", 0, 1)
	w.run()
	for rank := range 2 {
		if got, want := kinds(w.at("d", rank).eng), []handoff.DecisionKind{handoff.Reserve, handoff.Drop, handoff.SetWeightsEpoch}; !slices.Equal(got, want) {
			t.Errorf("destination rank %d got %v, want %v", rank, got, want)
		}
		e := w.at("p", rank).eng
		if got, want := kinds(e), []handoff.DecisionKind{handoff.SetWeightsEpoch, handoff.Free}; !slices.Equal(got, want) || e.weights != 1 {
			t.Errorf("source rank %d got %v, want %v; epoch %d", rank, got, want, e.weights)
		}
		if n := len(w.at("p", rank).m.pins); n != 0 {
			t.Errorf("source rank %d: %d pins", rank, n)
		}
	}
	if r, ok := w.calls[set]; !ok || r.Err != nil || len(p.m.lead.labels) != 1 {
		t.Errorf("call %+v; labels %v, want what is announced", r, p.m.lead.labels)
	}
	p.step(FromEngine{p.eng.session, handoff.Export{Label: "r2", Tokens: 16, Position: 16, Blocks: []int32{1}}})
	w.run()
	f, _ := p.eng.got[len(p.eng.got)-1].(handoff.Failed)
	if !errors.Is(f.Err, handoff.ErrWeights) || len(p.m.lead.labels) != 0 {
		t.Errorf("export of old weights: %v, labels %v", f.Err, p.m.lead.labels)
	}
}

func kinds(e *fakeEngine) (out []handoff.DecisionKind) {
	for _, m := range e.got {
		if d, ok := m.(handoff.Decision); ok {
			out = append(out, d.Kind)
		}
	}
	return out
}

// What is decided is admitted: the change comes behind it in the group's order.
func TestAdmitBeforeSetWeightsEpoch(t *testing.T) {
	w := pair(t, 1, 2)
	man := w.exportOf("r1", 0, handoff.Salt{})
	w.drop = dropType[handoff.RankApplied]
	c := w.importStart("d", man)
	w.run()
	w.setWeights("d", 0, 1)
	w.drop = nil
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
}

func TestSetWeightsEpochCalls(t *testing.T) {
	w := pair(t, 2, 2)
	now := func(c Call) error { t.Helper(); return w.ended(c).Err }
	if err := now(w.setWeights("d", 0, 0)); err != nil {
		t.Errorf("the present epoch: %v", err)
	}
	if err := now(w.setWeights("d", 1, 1)); !errors.Is(err, handoff.ErrNotReady) {
		t.Errorf("rank 1: %v", err)
	}
	d1 := w.at("d", 1)
	w.drop = func(from, _ handoff.Member, msg handoff.PeerMessage) bool {
		_, ok := msg.(handoff.RankApplied)
		return ok && from == d1.self
	}
	a, b := w.setWeights("d", 0, 5), w.setWeights("d", 0, 5)
	w.run()
	if _, ok := w.calls[a]; ok {
		t.Error("answered before every rank applied it")
	}
	w.advance(11 * time.Second)
	if !errors.Is(now(a), handoff.ErrInDoubt) || !errors.Is(now(b), handoff.ErrInDoubt) {
		t.Errorf("not applied: %v, %v", now(a), now(b))
	}
	if err := now(w.setWeights("d", 0, 4)); !errors.Is(err, handoff.ErrWeights) {
		t.Errorf("an older epoch: %v", err)
	}
	c := w.setWeights("d", 0, 5)
	w.drop = nil
	w.deliver(d1.self, ToPeer{w.at("d", 0).self, handoff.RankApplied{N: 1}})
	w.run()
	if err := now(c); err != nil || len(kinds(d1.eng)) != 1 {
		t.Errorf("asked again: %v, %v", err, kinds(d1.eng))
	}
	d := w.at("d", 0)
	w.drop = dropType[handoff.RankApplied]
	c = w.setWeights("d", 0, 6)
	d.step(EngineDown{d.eng.session})
	if !errors.Is(now(c), handoff.ErrInDoubt) || !errors.Is(now(w.setWeights("d", 0, 7)), handoff.ErrNotReady) {
		t.Errorf("the engine is gone: %v", now(c))
	}
}

// A pin of old weights that was on its way is given back.
func TestPinnedCrossesSetWeightsEpoch(t *testing.T) {
	w := pair(t, 2, 1)
	w.setWeights("p", 0, 2)
	p, p1 := w.at("p", 0), w.at("p", 1)
	p1.step(FromEngine{p1.eng.session, handoff.Export{Label: "r1", Tokens: 16, Position: 16, Blocks: []int32{1}}})
	w.run()
	if len(p1.eng.unpinned) != 1 || len(p1.m.pins) != 0 || len(p.m.lead.labels) != 0 || p.refused[len(p.refused)-1].Why != Weights {
		t.Fatalf("%d given back, %d pins, labels %v, refused %v", len(p1.eng.unpinned), len(p1.m.pins), p.m.lead.labels, p.refused)
	}
}

// The epochs are compared at the decision as well: nothing of other weights is admitted.
func TestWeightsAreComparedAtTheDecision(t *testing.T) {
	w := pair(t, 1, 1)
	d := w.at("d", 0)
	w.drop = func(_, _ handoff.Member, msg handoff.PeerMessage) bool {
		if _, ok := msg.(handoff.DoneAck); ok {
			d.m.lead.weights.epoch++
		}
		return false
	}
	c := w.importStart("d", w.exportOf("r1", 0, handoff.Salt{}))
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrWeights) || len(d.eng.admitted) != 0 || len(d.eng.released) != 1 {
		t.Fatalf("%v, %d admits, %d releases", r.Err, len(d.eng.admitted), len(d.eng.released))
	}
}

// Hashes are salted by what the source's engine says, whatever a manifest says.
func TestHashesAreSalted(t *testing.T) {
	w := pair(t, 1, 1)
	salt := handoff.Salt{LoRA: "l", Namespace: "n", Media: handoff.Digest{1}}
	d := w.at("d", 0)
	for label, s := range map[string]handoff.Salt{"r1": {}, "r2": salt} {
		c := w.importStart("d", w.exportOf(label, 0, s))
		w.run()
		if err := w.ended(c).Err; err != nil {
			t.Fatal(err)
		}
		want, _ := blockhash.Hashes(make([]int32, 40), 16, blockhash.Salt{Model: "test", LoRA: s.LoRA, Namespace: s.Namespace, Media: [32]byte(s.Media)})
		if got := d.eng.reserved[len(d.eng.reserved)-1].Hashes; !slices.Equal(got, want) {
			t.Errorf("%+v: hashes %v, want %v", s, got, want)
		}
	}
}
