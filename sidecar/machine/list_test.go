package machine

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
)

// all reads the list in pages of n.
func (n *node) all(t *testing.T, s Selection, page int) (os []Outcome) {
	t.Helper()
	s.Limit = page
	for {
		got, last, more, err := n.m.List(s)
		if err != nil || len(got) > page || more && len(got) < page {
			t.Fatalf("page of %d after %+v: %d, more %v, %v", page, s.After, len(got), more, err)
		}
		if os = append(os, got...); !more {
			return os
		}
		s.After = last
	}
}

func labels(os []Outcome) (ls []string) {
	for _, o := range os {
		ls = append(ls, o.Label)
	}
	return ls
}

// Every hand-off is listed once, whatever the size of a page; what ended is left out of
// those that live.
func TestList(t *testing.T) {
	w := pair(t, 1, 1)
	w.onPull = func(n *node, _ Pull) error {
		if len(n.m.lead.imports) == 3 {
			return errStuck
		}
		return nil
	}
	var want []string
	for i := range 5 {
		want = append(want, fmt.Sprint("r", i))
	}
	p, d := w.at("p", 0), w.at("d", 0)
	for i, l := range want {
		man := w.export("p", l, 16)
		switch i {
		case 0:
			w.importStart("d", man)
			w.run()
		case 3:
			w.drop = dropType[handoff.Open]
			w.importStart("d", man)
			w.run()
		}
	}
	for page := 1; page < 8; page++ {
		if got := labels(p.all(t, Selection{Sources: true, Imports: true}, page)); !slices.Equal(got, want) {
			t.Errorf("p by %d: %v", page, got)
		}
		if got := labels(p.all(t, Selection{Sources: true, Live: true}, page)); !slices.Equal(got, want[1:]) {
			t.Errorf("p by %d, live: %v", page, got)
		}
		if got := d.all(t, Selection{Sources: true, Imports: true}, page); len(got) != 2 || got[0].Label != "r0" || got[1].State != handoff.Opening {
			t.Errorf("d by %d: %+v", page, got)
		}
		if got := labels(d.all(t, Selection{Imports: true, Live: true}, page)); !slices.Equal(got, []string{"r3"}) {
			t.Errorf("d by %d, live: %v", page, got)
		}
	}
	if got := p.all(t, Selection{Imports: true}, 3); len(got) != 0 {
		t.Errorf("p imports nothing: %v", got)
	}
}

// Sources come before imports, and a page may end between them.
func TestPlaces(t *testing.T) {
	in := []Place{{}, {N: 1}, {N: 9}, {Import: true}, {Import: true, N: 1}, {Import: true, N: 3}}
	for i, a := range in {
		for j, b := range in {
			if got := a.compare(b); got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("%+v against %+v: %d", a, b, got)
			}
		}
	}
}

func TestLeadersAreAsked(t *testing.T) {
	w := pair(t, 2, 1)
	p := w.at("p", 0)
	g, name, _, err := p.m.Geometry()
	if err != nil || name != "test" || len(g.Members) != 2 || g.Group != "p" || g.Model.Check(g.Shards) != nil {
		t.Fatalf("%+v, %q, %v", g, name, err)
	}
	if _, _, _, err := w.at("p", 1).m.Geometry(); !errors.Is(err, handoff.ErrNotReady) {
		t.Errorf("rank 1: %v", err)
	}
	if _, _, _, err := w.at("p", 1).m.List(Selection{}); !errors.Is(err, handoff.ErrNotReady) {
		t.Errorf("rank 1: %v", err)
	}
	w.at("p", 1).step(EngineDown{w.at("p", 1).eng.session})
	w.run()
	if _, _, _, err := p.m.Geometry(); !errors.Is(err, handoff.ErrNotReady) {
		t.Errorf("without rank 1: %v", err)
	}
	if _, _, _, err := p.m.List(Selection{}); err != nil {
		t.Errorf("what is known is listed without rank 1: %v", err)
	}
}
