package machine

import (
	"slices"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
)

// told collects what p says to a stranger.
func (n *node) told(stranger handoff.Member, msg handoff.PeerMessage) (out []handoff.PeerMessage, shared bool) {
	for _, f := range n.m.Step(n.w.now, FromPeer{stranger, msg}) {
		switch f := f.(type) {
		case ToPeer:
			if f.Peer == stranger {
				out = append(out, f.Msg)
			}
		case ShareBuffers:
			shared = true
		case Refuse:
			n.refused = append(n.refused, f)
		}
	}
	return out, shared
}

// pinOf is a rank's pin of a label.
func (n *node) pinOf(label string) handoff.PinID {
	n.w.t.Helper()
	for id, p := range n.m.pins {
		if p.Label == label {
			return id
		}
	}
	n.w.t.Fatalf("%v has no pin of %q", n.self, label)
	return 0
}

// Buffers are for whom the leader told of a pin that is held: not for the asking, not for
// a guess, and not for a pin that is over.
func TestBuffersNeedAPin(t *testing.T) {
	w := pair(t, 2, 1)
	w.export("p", "r1", 40)
	w.run()
	stranger := handoff.Member{Group: "m", Incarnation: 9}
	for rank := range 2 {
		p := w.at("p", rank)
		pin := p.pinOf("r1")
		for _, guess := range []handoff.PinID{0, 1, pin + 1} {
			was := len(p.refused)
			out, shared := p.told(stranger, handoff.WantBuffers{Pin: guess})
			if b, ok := out[0].(handoff.Buffers); !ok || b.Why == "" || shared {
				t.Errorf("rank %d: pin %d: %+v, shared %v", rank, guess, out, shared)
			}
			if len(p.refused) != was+1 || p.refused[was].Why != NotHeld {
				t.Errorf("rank %d: pin %d: refused %+v", rank, guess, p.refused[was:])
			}
		}
		if _, shared := p.told(stranger, handoff.WantBuffers{Pin: pin}); !shared {
			t.Errorf("rank %d: who names its pin is not given the buffers", rank)
		}
	}
	late := w.at("p", 1)
	pin := late.pinOf("r1")
	now := w.now
	w.now = late.m.pins[pin].Deadline // and no tick has come
	if _, shared := late.told(stranger, handoff.WantBuffers{Pin: pin}); shared {
		t.Error("buffers by a pin whose deadline has come")
	}
	w.now = now
	w.at("p", 0).step(FromEngine{w.at("p", 0).eng.session, handoff.ReleaseExport{Label: "r1"}})
	w.run()
	if _, shared := w.at("p", 0).told(stranger, handoff.WantBuffers{}); shared {
		t.Error("buffers without a pin")
	}
}

// A link that was asked for by a pin that is over meanwhile is asked for by the next one:
// only what was to be read by the first fails.
func TestLinkAskedByAnotherPin(t *testing.T) {
	w := pair(t, 1, 1)
	a, b := w.export("p", "r1", 40), w.export("p", "r2", 40)
	w.drop = dropType[handoff.WantBuffers]
	ca, cb := w.importStart("d", a), Call(99)
	other := slices.Repeat([]int32{1}, 40) // shares no block with the first
	w.at("d", 0).step(Import{Call: cb, Import: handoff.Import{Manifest: b, Tokens: other}})
	w.run()
	w.drop = nil
	p, d := w.at("p", 0), w.at("d", 0)
	asked := d.m.links[p.self].pin
	p.step(FromEngine{p.eng.session, handoff.ReleaseExport{Label: "r1"}})
	w.run()
	p.step(FromPeer{d.self, handoff.WantBuffers{Pin: asked}}) // it was slow
	w.run()
	if r := w.ended(ca); r.Err == nil {
		t.Error("what was released is imported")
	}
	if r := w.ended(cb); r.Err != nil {
		t.Errorf("the other one: %v", r.Err)
	}
}
