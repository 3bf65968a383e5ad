package loop

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

func TestListAndGeometry(t *testing.T) {
	r := cluster(t, nil)
	r.handoff("r0", 20)
	for i := range 3 {
		r.export("p", fmt.Sprint("r", i+1), 20)
	}
	p, ctx := r.sides["p/0"].Service(), t.Context()
	var got []string
	q := control.Query{Limit: 1}
	for {
		page, err := p.List(ctx, q)
		check(t, err)
		for _, i := range page.Infos {
			if i.Role != control.Source || (i.Phase == control.Ended) != (i.Label == "r0") {
				t.Errorf("%+v", i)
			}
			got = append(got, i.Label)
		}
		if q.Page = page.Next; q.Page == "" {
			break
		}
	}
	if !slices.Equal(got, []string{"r0", "r1", "r2", "r3"}) {
		t.Errorf("listed %v", got)
	}
	if page, err := p.List(ctx, control.Query{Live: true}); err != nil || len(page.Infos) != 3 || page.Next != "" {
		t.Errorf("live: %+v, %v", page, err)
	}
	if page, err := r.sides["d/0"].Service().List(ctx, control.Query{Role: control.Destination}); err != nil || len(page.Infos) != 1 || page.Infos[0].Phase != control.Admitted {
		t.Errorf("d: %+v, %v", page, err)
	}
	g, err := p.Geometry(ctx)
	if err != nil || g.Name != "m" || len(g.Members) != 2 || g.Group != "p" || len(g.Shards) != 2 {
		t.Errorf("%+v, %v", g, err)
	}
	if _, err := r.sides["p/1"].Service().Geometry(ctx); !errors.Is(err, handoff.ErrNotReady) {
		t.Error(err)
	}
	for _, q := range []control.Query{{Page: "x1"}, {Page: "s"}, {Page: "s-1"}, {Page: "d18446744073709551616"}, {Limit: 1001}} {
		if _, err := p.List(ctx, q); !errors.Is(err, handoff.ErrBound) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	for _, at := range []machine.Place{{N: 1}, {Import: true, N: 1 << 63}} {
		if got, err := place(token(at)); err != nil || got != at {
			t.Errorf("%+v became %+v: %v", at, got, err)
		}
	}
}

// A cursor of an earlier process is told that something may be missing.
func TestWatchOfAnEarlierProcess(t *testing.T) {
	r := cluster(t, nil)
	p := r.sides["p/0"]
	ready := r.notice("p", 0, control.Ready, "")
	if ready.Incarnation != p.self.Incarnation {
		t.Fatalf("%+v is not of %v", ready, p.self)
	}
	first := func(from control.Cursor) control.Notice {
		for n, err := range p.Service().Watch(t.Context(), from) {
			check(t, err)
			return n
		}
		return control.Notice{}
	}
	if n := first(control.Cursor{Incarnation: p.self.Incarnation + 1, Seq: ready.Seq}); n.Kind != control.Gap || n.Lost != 0 {
		t.Errorf("%+v", n)
	}
	if n := first(control.Cursor{Incarnation: p.self.Incarnation, Seq: ready.Seq}); n.Kind != control.Ready {
		t.Errorf("%+v", n)
	}
}
