package loop

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/metrics"
)

func storedBlocks(parent uint64, ids ...uint64) handoff.BlockEvents {
	e := handoff.BlockEvent{Kind: handoff.BlocksStored, Parent: parent, BlockTokens: 1}
	for _, id := range ids {
		e.Blocks = append(e.Blocks, handoff.StoredBlock{ID: id, Tokens: []int32{int32(id)}})
	}
	return handoff.BlockEvents{Events: []handoff.BlockEvent{e}}
}

// tells attaches an engine that tells of at most four blocks.
func (n *inside) tells(instance handoff.Instance) *engineEnd {
	a := attachOf(n.cfg.Machine.Self.Group, instance, 0, 1)
	a.TellsBlocks, a.Capacity.Blocks = true, 4
	return n.engineOf(a)
}

// reads reads blocks until it is ended, and notes what it hears.
func (n *inside) reads(name string) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for e, err := range n.Service().Blocks(ctx) {
			switch {
			case err != nil:
				n.b.note(name, "ends: %t", errors.Is(err, context.Canceled) || errors.Is(err, errStopped))
			case e.Kind == handoff.BlocksStored:
				ids := []uint64{e.Parent}
				for _, b := range e.Blocks {
					ids = append(ids, b.ID)
				}
				n.b.note(name, "stored %v", ids)
			default:
				n.b.note(name, "%v %v", e.Kind, e.Removed)
			}
		}
	}()
	synctest.Wait()
	return func() { cancel(); synctest.Wait() }
}

func (n *inside) shows(want metrics.Blocks) {
	n.b.t.Helper()
	synctest.Wait()
	if got := n.cached.now(); got != want {
		n.b.t.Errorf("shows %+v, want %+v", got, want)
	}
}

// TestBlocks: an engine is asked to tell while somebody reads, a late reader hears all, and
// what goes with its engine is cleared.
func TestBlocks(t *testing.T) {
	inBubble(t, func(b *bubble) {
		n := b.side("p", nil)
		synctest.Wait()
		end1 := n.reads("r1")
		e := n.tells(7)
		synctest.Wait()
		e.say(handoff.BlockEvents{Events: []handoff.BlockEvent{{Kind: handoff.BlocksCleared}}}, storedBlocks(0, 1, 2))
		end2 := n.reads("r2")
		e.say(storedBlocks(2, 3), handoff.BlockEvents{Events: []handoff.BlockEvent{{Kind: handoff.BlocksRemoved, Removed: []uint64{3, 9}}}},
			handoff.BlockEvents{Events: []handoff.BlockEvent{{Kind: handoff.BlocksRemoved, Blocks: storedBlocks(0, 8).Events[0].Blocks}}}, storedBlocks(2, 4, 5, 6))
		n.shows(metrics.Blocks{Known: 4, Events: 5, Ignored: 1, Refused: 1})
		end2()
		_ = e.Close(nil)
		<-e.gone
		n.shows(metrics.Blocks{Events: 5, Ignored: 1, Refused: 1})
		e = n.tells(8)
		synctest.Wait()
		e.say(storedBlocks(0, 1))
		synctest.Wait()
		end1()
		e.say(storedBlocks(1, 2)) // it has not heard yet
		n.shows(metrics.Blocks{Events: 6, Ignored: 1, Refused: 1})
		end3 := n.reads("r3")
		b.want("0s p/0 tells its engine: tell", " blocks true", " blocks true", " blocks false", " blocks true")
		b.want("0s r1 ", "cleared []", "stored [0 1 2]", "stored [2 3]", "removed [3]", "stored [2 4 5]", "cleared []", "stored [0 1]", "ends: true")
		b.want("0s r2 ", "cleared []", "stored [0 1 2]", "stored [2 3]", "removed [3]", "stored [2 4 5]", "ends: true")
		b.want("0s r3 ", "cleared []")
		end3()
	})
}

// TestBlocksOfWhom: an engine that says nothing of blocks is not asked, and what it tells
// all the same is refused; a reader ends with the sidecar.
func TestBlocksOfWhom(t *testing.T) {
	inBubble(t, func(b *bubble) {
		n := b.side("p", nil)
		e := n.engine()
		synctest.Wait()
		n.reads("r")
		e.say(storedBlocks(0, 1))
		n.shows(metrics.Blocks{Refused: 1})
		b.want("tell blocks")
		n.end()
		<-n.over
		b.want("0s r ", "cleared []", "ends: true")
	})
}

// TestSlowReaders hear that they missed something, and hold up nobody.
func TestSlowReaders(t *testing.T) {
	inBubble(t, func(b *bubble) {
		n := b.side("p", nil)
		e := n.tells(7)
		synctest.Wait()
		const rounds = 1 << 16
		var told []string
		for ev, err := range n.Service().Blocks(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			told = append(told, fmt.Sprint(ev.Kind, ev.Lost > rounds, len(ev.Blocks)))
			if len(told) == 1 {
				for range rounds {
					e.say(storedBlocks(0, 1, 2), handoff.BlockEvents{Events: []handoff.BlockEvent{{Kind: handoff.BlocksRemoved, Removed: []uint64{1, 2}}}})
				}
				e.say(storedBlocks(0, 3))
			}
			if len(told) == 3 {
				break
			}
		}
		if fmt.Sprint(told) != "[cleared false 0 cleared true 0 stored false 1]" {
			t.Error(told)
		}
		n.shows(metrics.Blocks{Events: 2*rounds + 1, Gaps: 1})
	})
}
