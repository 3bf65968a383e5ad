package loop

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/mem"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer"
)

// manifest waits for that of a label.
func (n *inside) manifest(label string) handoff.Manifest {
	for x, err := range n.Service().Watch(n.b.t.Context(), control.Cursor{}) {
		check(n.b.t, err)
		if x.Kind == control.Exported && x.Label == label {
			return *x.Manifest
		}
	}
	return handoff.Manifest{}
}

// imports asks for an import; its end is noted.
func (n *inside) imports(man handoff.Manifest, deadline time.Duration) {
	go func() {
		_, err := n.Service().Import(context.Background(), handoff.Import{Manifest: man, Tokens: make([]int32, rows), Deadline: deadline})
		n.b.note(n.name, "answers: %s", errs.Name(err))
	}()
}

// pass lets the bubble's clock run, and all that happens by then happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A lease ends at its instant, and one that is renewed at the end of its hold: no sooner,
// no later, and nobody but the clock wakes the loop.
func TestLeases(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p := b.side("p", nil)
		e := p.engine()
		synctest.Wait()
		e.export("short", 0)
		e.export("long", 100*time.Second)
		pass(time.Hour)
		b.want("p/0 tells its engine: ", "0s exported short", "0s exported long", "30s free", "1m40s free")
	})
}

// An import ends at its deadline, whoever it waits for; a peer that does not answer is
// dialled after pauses that double up to their bound.
func TestDeadlineAndRedial(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, d := b.side("p", nil), b.side("d", nil)
		e := p.engine()
		d.engine()
		synctest.Wait()
		e.export("x", 0)
		man := p.manifest("x")
		p.close() // and discovery goes on to show it
		was := p.cfg.Record
		was.Addr = "nowhere:1"
		nobody := b.store.Open(mem.Config{})
		defer nobody.Close()
		_, err := nobody.Register(t.Context(), was)
		check(t, err)
		synctest.Wait()
		d.imports(man, 12*time.Second)
		pass(time.Hour)
		b.want("d/0 dials ", "0s p", "100ms p", "300ms p", "700ms p", "1.5s p", "3.1s p", "6.3s p", "11.3s p")
		b.want("d/0 answers: ", "12s handoff.deadline")
	})
}

// A copy that does not stop ends with its mover, which is asked to end again and again
// until it has; the memory comes back then, and not before.
func TestKillAfter(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, d := b.side("p", nil), b.side("d", nil)
		d.stay = true
		e := p.engine()
		d.engine()
		synctest.Wait()
		e.export("x", 0)
		d.imports(p.manifest("x"), 5*time.Second)
		pass(2*time.Minute + 10*time.Second)
		d.settle(transfer.ErrMover)
		b.want("d/0 tells its engine: ", "0s reserve", "5s drop", "2m10s release-quarantine")
		b.want("d/0 asks a copy to stop", "5s ")
		b.want("d/0 answers: ", "5s handoff.deadline")
		b.want("d/0 kills its mover", "35s ", "1m5s ", "1m35s ", "2m5s ")
	})
}

// poor is discovery that fails a number of times.
type poor struct {
	discovery.Registry
	n                *inside
	registers, views int
	reg              discovery.Registration // the newest
}

func (p *poor) Register(ctx context.Context, r discovery.Record) (discovery.Registration, error) {
	p.n.b.note(p.n.name, "registers")
	if p.registers--; p.registers >= 0 {
		return nil, discovery.ErrDown
	}
	reg, err := p.Registry.Register(ctx, r)
	p.reg = reg
	return reg, err
}

func (p *poor) Watch(ctx context.Context, s discovery.Scope) iter.Seq2[discovery.Snapshot, error] {
	p.n.b.note(p.n.name, "watches")
	if p.views--; p.views >= 0 {
		return func(yield func(discovery.Snapshot, error) bool) { yield(discovery.Snapshot{}, discovery.ErrDown) }
	}
	return p.Registry.Watch(ctx, s)
}

// A registration that fails is made again after pauses that double up to their bound, one
// that is lost at once, and so is the view; who hears warnings alone hears the end of it.
func TestDiscoveryFails(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var g *poor
		n := b.side("p", func(n *inside, in discovery.Registry) discovery.Registry {
			g = &poor{Registry: in, n: n, registers: 6, views: 2}
			return g
		})
		pass(time.Minute)
		check(t, n.unregistered())
		lose := func() {
			b.store.Orphan(g.reg)
			pass(time.Hour)
			b.store.Sweep()
			synctest.Wait()
		}
		lose()
		check(t, n.unregistered())
		g.registers = 1
		lose()
		if n.unregistered() == nil {
			t.Error("a sidecar whose registration was lost, and not made anew, says that it is registered")
		}
		pass(time.Hour)
		check(t, n.unregistered())
		b.want("p/0 watches", "0s ", "500ms ", "1.5s ")
		b.want("p/0 registers", "0s ", "500ms ", "1.5s ", "3.5s ", "7.5s ", "12.5s ", "17.5s ", "1h1m0s ", "2h1m0s ", "2h1m0.5s ")
		b.want("warns: registration lost", "1h1m0s p/0 ", "2h1m0s p/0 ")
		b.want("warns: registered again", "17.5s p/0 ", "1h1m0s p/0 ", "2h1m0.5s p/0 ")
		b.want("warns: discovery view is fresh again", "1.5s p/0 ")
	})
}
