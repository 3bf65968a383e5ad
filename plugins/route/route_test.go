package route

import (
	"context"
	"crypto/tls"
	"errors"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/models"
	"github.com/batonkv/baton/transfer/planview"
	"github.com/batonkv/baton/transfer/reshard"
)

func TestWhoIsThere(t *testing.T) {
	w := newWorld(t)
	w.register("g", 0, "127.0.0.1:1", 7)
	w.register("h", 1, "127.0.0.1:2", 8)
	w.shows(2)
	gs, err := w.router.Cluster().Groups(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	g, h := gs[0], gs[1]
	if g.Name != "g" || !g.Complete || g.Instance != 4 || g.Size != 1 || g.Ranks[0].Incarnation != 7 || g.Ranks[0].Addr != "127.0.0.1:1" || g.Role != discovery.Decode {
		t.Errorf("%+v", g)
	}
	if h.Complete {
		t.Errorf("a group without its leader is complete: %+v", h)
	}
}

// TestErrors: what cannot be called says why, in a sentinel and in words.
func TestErrors(t *testing.T) {
	w := newWorld(t)
	foreign := w.sidecar(newCA(t), "foreign", 5)
	w.register("foreign", 0, foreign.addr, 5)
	w.register("headless", 1, "127.0.0.1:1", 6)
	dead := w.sidecar(w.ca, "dead", 7)
	dead.stop()
	w.register("dead", 0, dead.addr, 7)
	w.shows(3)
	for group, c := range map[string]struct {
		want error
		says string
	}{
		"nobody":   {handoff.ErrGroup, "nobody"},
		"head":     {handoff.ErrGroup, "did you mean headless"},
		"headless": {handoff.ErrNotReady, "rank 0"},
		"dead":     {handoff.ErrPeer, dead.addr},
		"foreign":  {handoff.ErrDenied, foreign.addr},
	} {
		_, ierr := w.router.Handoff().Import(bounded(t), group, handoff.Import{Label: "r"})
		_, derr := w.router.Cluster().Describe(bounded(t), group)
		for call, err := range map[string]error{"import": ierr, "describe": derr} {
			if !errors.Is(err, c.want) || errors.Is(err, handoff.ErrInDoubt) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s of %s: %v; want %v that says %q", call, group, err, c.want, c.says)
			}
		}
	}
	for _, err := range w.router.Handoff().Watch(bounded(t), "nobody", control.Cursor{}) {
		if !errors.Is(err, handoff.ErrGroup) {
			t.Errorf("watch: %v", err)
		}
	}
}

func TestDiscoveryIsDown(t *testing.T) {
	asked := make(chan struct{}, 1)
	w := newWorld(t, func(c *Config) {
		c.Source = func(context.Context) iter.Seq2[discovery.Snapshot, error] {
			return func(yield func(discovery.Snapshot, error) bool) {
				select {
				case asked <- struct{}{}:
				default:
				}
				yield(discovery.Snapshot{}, discovery.ErrDown)
			}
		}
	})
	<-asked
	if _, err := w.router.Cluster().Groups(bounded(t)); !errors.Is(err, discovery.ErrDown) {
		t.Errorf("got %v", err)
	}
}

// TestConnectionsGoWithTheirRecords: a leader is dialled once, its successor anew, and no
// connection outlives the record that it was made for.
func TestConnectionsGoWithTheirRecords(t *testing.T) {
	w := newWorld(t)
	a, b := w.sidecar(w.ca, "g", 1), w.sidecar(w.ca, "g", 2)
	reg := w.register("g", 0, a.addr, 1)
	w.shows(1)
	ask := func(want *sidecar) {
		t.Helper()
		for range 3 {
			if got, err := w.router.Handoff().Import(bounded(t), "g", handoff.Import{Label: "r"}); err != nil || got.Bytes != int64(want.st.Self.Incarnation) {
				t.Fatalf("%+v, %v", got, err)
			}
		}
		if n := want.conns.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
	}
	ask(a)
	reg.Close(bounded(t))
	w.shows(0)
	w.register("g", 0, b.addr, 2)
	w.shows(1)
	ask(b)
	w.router.Close()
	for _, s := range []*sidecar{a, b} {
		s.stop() // waits for the ends of its connections
		if n := s.conns.Load(); n != 0 {
			t.Errorf("%d connections are open at the end", n)
		}
	}
}

// TestLinksOfOneThatGoes: a sidecar that does not answer and leaves discovery meanwhile is gone;
// one that stays there is silent.
func TestLinksOfOneThatGoes(t *testing.T) {
	var goes discovery.Registration
	var w *world
	w = newWorld(t, func(c *Config) {
		c.TLS = func(r discovery.Record) *tls.Config {
			if r.Group == "g" {
				goes.Close(bounded(t))
				w.shows(1)
			}
			return w.own
		}
	})
	goes = w.register("g", 0, "127.0.0.1:1", 1)
	w.register("s", 0, "127.0.0.1:1", 2)
	w.shows(2)
	got, err := w.router.Links(bounded(t), control.LinksQuery{}, nil)
	if err != nil || len(got) != 2 || got[0].Err == nil || !got[0].Gone || got[1].Err == nil || got[1].Gone {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestLinksOfARank: the rank that is asked for answers, and one that is not there is told from a
// group that is not.
func TestLinksOfARank(t *testing.T) {
	w := newWorld(t)
	s := w.sidecar(w.ca, "g", 1)
	w.register("g", 0, s.addr, 1)
	w.shows(1)
	links := w.router.Cluster().Links
	if got, err := links(bounded(t), "g", 0, control.LinksQuery{Meet: true}); err != nil || got.Self != s.st.Self || got.More != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := links(bounded(t), "g", 1, control.LinksQuery{}); !errors.Is(err, handoff.ErrNotReady) || !strings.Contains(err.Error(), "rank 1") {
		t.Error(err)
	}
	if _, err := links(bounded(t), "h", 0, control.LinksQuery{}); !errors.Is(err, handoff.ErrGroup) {
		t.Error(err)
	}
}

func TestUnusedConnectionsAreBounded(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Connections = 2 })
	names := []string{"g1", "g2", "g3", "g4"}
	for i, n := range names {
		w.register(n, 0, w.sidecar(w.ca, n, handoff.Incarnation(i+1)).addr, handoff.Incarnation(i+1))
	}
	w.shows(len(names))
	for _, n := range names {
		if _, err := w.router.Handoff().Import(bounded(t), n, handoff.Import{Label: "r"}); err != nil {
			t.Fatal(err)
		}
	}
	cs := w.router.conns
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.open) != 2 || len(cs.all) != 2 || cs.open["g3"] == nil || cs.open["g4"] == nil {
		t.Errorf("kept: %v", cs.open)
	}
}

// TestWatchFollowsTheLeader: over a restart a watch goes on with the next leader, and says
// that something may have been missed.
func TestWatchFollowsTheLeader(t *testing.T) {
	for name, clean := range map[string]bool{"its stream ends": true, "it hangs": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a, b := w.sidecar(w.ca, "g", 1), w.sidecar(w.ca, "g", 2)
			a.log.Append(control.Notice{Kind: control.Ready})
			a.log.Append(control.Notice{Kind: control.Over, Label: "r1"})
			b.log.Append(control.Notice{Kind: control.Over, Label: "r2"})
			reg := w.register("g", 0, a.addr, 1)
			w.shows(1)
			var kinds []control.Kind
			var last control.Notice
			for n, err := range w.router.Handoff().Watch(bounded(t), "g", control.Cursor{Incarnation: 1, Seq: 2}) {
				if err != nil {
					t.Fatal(err)
				}
				kinds = append(kinds, n.Kind)
				if last = n; n.Label == "r2" {
					break
				}
				if n.Label == "r1" {
					if clean {
						a.stop()
					}
					reg.Close(bounded(t))
					w.register("g", 0, b.addr, 2)
				}
			}
			if len(kinds) != 3 || kinds[1] != control.Gap || last.Incarnation != 2 || last.Seq != 1 {
				t.Errorf("%v, last %+v", kinds, last)
			}
		})
	}
}

func TestWatchGivesUp(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Patience = time.Nanosecond })
	a := w.sidecar(w.ca, "g", 1)
	a.log.Append(control.Notice{Kind: control.Ready})
	reg := w.register("g", 0, a.addr, 1)
	w.shows(1)
	var last error
	for _, err := range w.router.Handoff().Watch(bounded(t), "g", control.Cursor{}) {
		if last = err; err == nil {
			reg.Close(bounded(t))
			a.stop()
		}
	}
	if !errors.Is(last, handoff.ErrGroup) && !errors.Is(last, handoff.ErrPeer) {
		t.Errorf("got %v", last)
	}
}

// TestQuietLeader: patience counts from the end of a leader, however long it had nothing to tell.
func TestQuietLeader(t *testing.T) {
	w := newWorld(t)
	a := w.sidecar(w.ca, "g", 1)
	a.log.Append(control.Notice{Kind: control.Ready})
	reg := w.register("g", 0, a.addr, 1)
	w.shows(1)
	long := time.Now().Add(-time.Hour)
	f := following{Router: w.router, group: "g", heard: long}
	f.yield = func(control.Notice, error) bool {
		f.heard = long // it says no more
		a.stop()
		return true
	}
	if err := f.one(bounded(t)); err != nil && !errors.Is(err, handoff.ErrPeer) || !f.heard.After(long) {
		t.Errorf("%v, heard %v", err, f.heard)
	}
	f.heard = long
	if err := f.one(bounded(t)); !errors.Is(err, handoff.ErrPeer) || f.heard != long {
		t.Errorf("after its end: %v, heard %v", err, f.heard)
	}
	if err := reg.Close(bounded(t)); err != nil {
		t.Error(err)
	}
}

func TestOne(t *testing.T) {
	w := newWorld(t)
	s := w.sidecar(w.ca, "g", 3)
	s.st.Ranks, s.st.Instance = 2, 9
	s.st.Members = []control.MemberStatus{{Member: s.st.Self, PID: 5, Addr: "unreachable:1", Attached: true},
		{Member: handoff.Member{Group: "g", Rank: 1, Incarnation: 4}, PID: 6, Addr: "h:2", Attached: true}}
	r := New(Config{Source: One(s.addr, w.own, discovery.Record{Cluster: "c"}), TLS: func(discovery.Record) *tls.Config { return w.own }})
	defer r.Close()
	gs, err := r.Cluster().Groups(bounded(t))
	if err != nil || len(gs) != 1 || !gs[0].Complete || gs[0].Ranks[0].Addr != s.addr || gs[0].Ranks[1].Addr != "h:2" || gs[0].Cluster != "c" {
		t.Fatalf("%+v, %v", gs, err)
	}
	if _, err := r.Handoff().Import(bounded(t), "g", handoff.Import{Label: "r"}); err != nil {
		t.Error(err)
	}
	if _, err := r.Handoff().Import(bounded(t), "other", handoff.Import{Label: "r"}); !errors.Is(err, handoff.ErrGroup) {
		t.Errorf("another group: %v", err)
	}
}

// geometry is a group that runs a published model.
func geometry(t *testing.T, model, side string) control.Geometry {
	t.Helper()
	m, err := models.ByName(model)
	if err != nil {
		t.Fatal(err)
	}
	s, err := planview.ParseSide(side, planview.Default{Block: blockTokens, KV: layout.BF16})
	if err != nil {
		t.Fatal(err)
	}
	g, err := planview.OfModel(m, s, s, planTokens)
	if err != nil {
		t.Fatal(err)
	}
	return control.Geometry{Name: m.Slug, Geometry: handoff.Geometry{Group: "x", Instance: 4, Model: g.Model, Shards: g.Src}}
}

// TestPlan: a live side and the layout that describes it give one plan.
func TestPlan(t *testing.T) {
	const model = "llama-3.1-70b"
	w := newWorld(t)
	for i, side := range []string{"tp=4", "tp=2,pp=2"} {
		name := []string{"p", "d"}[i]
		s := w.sidecar(w.ca, name, handoff.Incarnation(i+1))
		s.geo = geometry(t, model, side)
		w.register(name, 0, s.addr, handoff.Incarnation(i+1))
	}
	other := w.sidecar(w.ca, "o", 9)
	other.geo = geometry(t, "nemotron-h-8b", "tp=1")
	w.register("o", 0, other.addr, 9)
	w.shows(3)
	r, ctx := w.router.Reshard(), bounded(t)
	side := func(s string) plugins.Side {
		if strings.Contains(s, "=") {
			return plugins.Side{Layout: s}
		}
		return plugins.Side{Group: s}
	}
	var first plugins.Plan
	for _, c := range [][3]string{{"p", "d"}, {"p", "tp=2,pp=2"}, {"tp=4", "d"}, {"tp=4", "tp=2,pp=2", model}} {
		got, err := r.Plan(ctx, plugins.PlanQuery{Source: side(c[0]), Destination: side(c[1]), Model: c[2]})
		if err != nil || len(got.Moves) == 0 {
			t.Fatalf("%v: %v", c, err)
		}
		if first.Moves == nil {
			first = got
		}
		if got.Digest != first.Digest {
			t.Errorf("%v: digest %x, want %x", c, got.Digest, first.Digest)
		}
	}
	for _, c := range []struct {
		src, dst, model string
		want            error
	}{
		{"p", "o", "", handoff.ErrModel}, {"o", "tp=2", model, handoff.ErrModel}, {"tp=1", "tp=2", "", layout.ErrGeometry},
		{"tp=1", "tp=2", "gpt-9", layout.ErrGeometry}, {"tp=x", "d", "", layout.ErrGeometry}, {"p", "nobody", "", handoff.ErrGroup},
	} {
		if _, err := r.Plan(ctx, plugins.PlanQuery{Source: side(c.src), Destination: side(c.dst), Model: c.model}); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}

	lacking := w.sidecar(w.ca, "l", 10)
	lacking.geo = geometry(t, model, "tp=4")
	lacking.geo.Shards = lacking.geo.Shards[:len(lacking.geo.Shards)/2]
	w.register("l", 0, lacking.addr, 10)
	w.shows(4)
	if _, err := r.Plan(ctx, plugins.PlanQuery{Source: side("l"), Destination: side("d")}); !errors.Is(err, reshard.ErrUncovered) {
		t.Errorf("half a group: %v", err)
	}
	for f, begins := range map[plugins.Format]string{plugins.Text: "", plugins.JSON: "{", plugins.SVG: "<svg"} {
		b, err := r.Explain(ctx, plugins.PlanQuery{Source: side("p"), Destination: side("d")}, 1000, f)
		if err != nil || !strings.Contains(string(b), begins) || len(b) < 200 {
			t.Errorf("format %d: %q, %v", f, b, err)
		}
	}
}
