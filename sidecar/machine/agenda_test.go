package machine

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/sidecar/handoff"
)

// TestAgenda compares an agenda with a plain map under any changes.
func TestAgenda(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a agenda[int]
		want := map[int]Now{}
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			k := rapid.IntRange(0, 20).Draw(t, "key")
			if rapid.IntRange(0, 2).Draw(t, "drop") == 0 {
				a.drop(k)
				delete(want, k)
			} else {
				at := Now(rapid.IntRange(0, 9).Draw(t, "at"))
				a.set(k, at)
				want[k] = at
			}
			now := Now(rapid.IntRange(-1, 10).Draw(t, "now"))
			due := maps.Clone(want)
			maps.DeleteFunc(due, func(_ int, at Now) bool { return at > now })
			if got := slices.Sorted(slices.Values(a.due(now))); !slices.Equal(got, slices.Sorted(maps.Keys(due))) {
				t.Fatalf("due at %d: %v, want %v", now, got, due)
			}
			at, ok := a.next()
			if ok != (len(want) > 0) || ok && at != slices.Min(slices.Collect(maps.Values(want))) {
				t.Fatalf("next %v %v of %v", at, ok, want)
			}
		}
	})
}

// agendas compares what n keeps by instant with what it is derived from.
func (n *node) agendas() error {
	dues, ends := map[handoff.ID]Now{}, map[handoff.PinID]Now{}
	for _, id := range n.m.lead.labels {
		s := n.m.lead.sources[id]
		dues[id] = s.Deadline()
		if at, ok := s.Renews(); ok {
			dues[id] = min(at, dues[id])
		}
	}
	for id, p := range n.m.pins {
		ends[id] = p.Deadline
	}
	if got := n.m.lead.dues.all(); !maps.Equal(got, dues) {
		return fmt.Errorf("%v sees to its labels at %v, they are due at %v", n.self, got, dues)
	}
	if got := n.m.pinEnds.all(); !maps.Equal(got, ends) {
		return fmt.Errorf("%v frees its pins at %v, they end at %v", n.self, got, ends)
	}
	return nil
}

func (a *agenda[K]) all() map[K]Now {
	all := map[K]Now{}
	for k, i := range a.place {
		all[k] = a.heap[i].at
	}
	return all
}

// BenchmarkHeld is an event that does nothing, at a leader that holds so many labels.
func BenchmarkHeld(b *testing.B) {
	for _, labels := range []int{10, 100, 1000, 4000} {
		b.Run(fmt.Sprint(labels), func(b *testing.B) {
			w := newWorld(&testing.T{})
			w.group("p", 1)
			p := w.at("p", 0)
			for i := range labels {
				p.step(FromEngine{p.eng.session, handoff.Announce{Label: fmt.Sprint("r", i)}})
			}
			w.run()
			for b.Loop() {
				w.now += time.Nanosecond
				p.m.Step(w.now, Tick{})
				p.m.Next()
			}
		})
	}
}
