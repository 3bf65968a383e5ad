package loop

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer"
)

// two sidecars whose engines are attached.
func (b *bubble) pair() (p, d *inside) {
	p, d = b.side("p", nil), b.side("d", nil)
	p.engine()
	d.engine()
	synctest.Wait()
	return p, d
}

func (b *bubble) handoff(p, d *inside, label string) {
	p.last.export(label, 0)
	d.imports(p.manifest(label), 0)
}

// A hand-off takes as long as its copy, and then the source is free.
func TestBubbleHandoff(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, d := b.pair()
		b.handoff(p, d, "x")
		pass(10 * time.Second)
		b.want("d/0 answers: ", "1s ")
		b.want("d/0 tells its engine: ", "0s reserve", "1s admit")
		b.want("p/0 tells its engine: ", "0s exported x", "1s free")
		b.want("ends a session")
	})
}

// A session that ends is made again when it is wanted, and what follows goes on.
func TestPeerSessionBreaks(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, d := b.pair()
		b.handoff(p, d, "x")
		pass(time.Minute)
		p.open[0].Close(handoff.ErrPeer)
		synctest.Wait()
		b.handoff(p, d, "y")
		pass(time.Minute)
		b.want("d/0 dials ", "0s p", "1m0s p")
		b.want("d/0 answers: ", "1s ", "1m1s ")
	})
}

// Every session with a peer ends with one of them, once: what was asked on either is
// forgotten there.
func TestPeerSessionsEndTogether(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, d := b.pair()
		b.handoff(p, d, "x")
		pass(time.Minute)
		p.join(d) // both dialled: p's own
		synctest.Wait()
		if n := len(p.up[d.cfg.Machine.Self]); n != 2 {
			t.Fatalf("%d sessions, want 2", n)
		}
		d.open[0].Close(handoff.ErrPeer)
		synctest.Wait()
		if len(p.up)+len(d.up) > 0 {
			t.Errorf("sessions that are left: %v, %v", p.up, d.up)
		}
		if ends := b.noted("ends a session with "); len(ends) != 2 || ends[0] != "1m0s d/0 p" {
			t.Errorf("sessions that ended: %v", ends)
		}
		b.want("d/0 revokes what ", "1m0s p/0@1 may fetch")
		b.want("p/0 revokes what ", "1m0s d/0@2 may fetch")
	})
}

// A session that a peer opens anew takes the place of the one that it had opened before.
func TestPeerSessionReplaced(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, d := b.pair()
		old, _ := d.join(p)
		synctest.Wait()
		late := old.other
		now, _ := d.join(p)
		synctest.Wait()
		for n, want := range map[*inside]*peerEnd{p: now.other, d: now} {
			if ss := n.up[want.peer]; len(ss) != 1 || ss[0] != want {
				t.Errorf("%s has %d sessions", n.name, len(ss))
			}
		}
		if ends := b.noted("ends a session with "); len(ends) != 1 {
			t.Errorf("sessions that ended: %v", ends)
		}
		refused := len(p.refused)
		p.fromPeer(late, handoff.Leased{}) // the last word of the one that was replaced
		if synctest.Wait(); len(p.refused) != refused {
			t.Error("a word of a session that is over is heard")
		}
	})
}

// What an engine's session does not take ends it: nothing follows a word that was lost.
// Its copies go on, and its memory is let go after the last of them.
func TestEngineSessionBreaks(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, d := b.pair()
		d.stay = true
		b.handoff(p, d, "x")
		pass(time.Second)
		e := d.last
		e.mu.Lock()
		e.deaf = true
		e.mu.Unlock()
		pass(time.Minute) // at the deadline a Drop is for the engine
		b.want("d/0 loses its engine", "30s ")
		b.want("d/0 unmaps")
		d.settle(transfer.ErrMover)
		synctest.Wait()
		b.want("d/0 unmaps", "1m1s ")
	})
}

// A sidecar's words to itself come before anything that waits: an export that is given up
// in the same instant was exported.
func TestOwnWordsFirst(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, _ := b.pair()
		gate := make(chan struct{})
		p.post(func() { <-gate }) // what follows waits together
		p.last.export("x", 0)
		p.last.say(handoff.ReleaseExport{Label: "x"})
		close(gate)
		b.want("p/0 tells its engine: ", "0s exported x", "0s free")
	})
}

// The next engine's memory is mapped after the last one's was let go: their buffers have
// the same numbers.
func TestMapsInSequence(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, _ := b.pair()
		p.unmaps = make(chan struct{})
		_ = p.last.Close(nil)
		<-p.last.gone
		p.engine()
		pass(time.Second)
		b.want("p/0 maps", "0s ")
		close(p.unmaps)
		b.want("p/0 unmaps", "1s ")
		b.want("p/0 maps", "0s ", "1s ")
	})
}

// Stopping asks copies to stop and waits for them, begins none, and leaves nobody without
// an answer; when they do not end it says so after the grace, and not before.
func TestStop(t *testing.T) {
	for name, ends := range map[string]bool{"copies end": true, "copies stay": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				p, d := b.pair()
				d.stay = true
				b.handoff(p, d, "x")
				pass(time.Second)
				d.end()
				synctest.Wait()
				if err := d.Service().Abort(b.t.Context(), handoff.ID{}, handoff.Key{}); !errors.Is(err, handoff.ErrNotReady) {
					t.Errorf("a call while it stops: %v", err)
				}
				pass(time.Second)
				if ends {
					d.settle(nil)
				}
				pass(time.Minute)
				b.want("d/0 asks a copy to stop", "1s ")
				b.want("d/0 answers: ", map[bool]string{true: "2s handoff.in-doubt", false: "4s handoff.in-doubt"}[ends])
				b.want("d/0 ran to its end: ", map[bool]string{true: "2s <nil>", false: "4s sidecar: 1 copies have not ended after 3s: the mover's exit ends them"}[ends])
				for range d.Service().Watch(b.t.Context(), control.Cursor{}) { // ends too
				}
			})
		})
	}
}
