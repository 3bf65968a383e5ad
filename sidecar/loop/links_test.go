package loop

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/drive"
	"github.com/batonkv/baton/transfer/staged/tcp"
)

// offers are an end's transports: "tcp", or "tcp!why" that it lacks.
func offers(words ...string) choice.End {
	e := choice.End{}
	for _, w := range words {
		name, why, _ := strings.Cut(w, "!")
		e.Offers = append(e.Offers, choice.Offer{Name: name, Protocol: "plain/1", Missing: why})
	}
	return e
}

// wired is staging over TCP in this process; slow delays every chunk of it.
func wired(b choice.Baseline, slow time.Duration) Staging {
	return Staging{Chunks: 2, Baseline: func(context.Context) choice.Baseline { return b },
		Start: func(ctx context.Context, r drive.Route, id staged.Incarnation, arena transfer.Memory) (drive.Mover, error) {
			return mover.WireInProcess(ctx, mover.WireConfig{Arena: arena, Setup: mover.Setup{Transport: r.Transport, Wire: id, Group: r.Group,
				Bytes: arena.Len, Chunk: drive.ChunkBytes, Listen: "127.0.0.1:0"}}, func(s mover.Setup, b []byte) (staged.Wire, error) {
				w, err := tcp.New(tcp.Config{Wire: s.Wire, Arena: b, Chunk: s.Chunk, Listen: s.Listen})
				return slowly{w, slow}, err
			})
		}}
}

type slowly struct {
	staged.Wire
	by time.Duration
}

func (w slowly) Fetch(f staged.Fetching, done func(error)) func() {
	return w.Wire.Fetch(f, func(err error) { time.AfterFunc(w.by, func() { done(err) }) })
}

// told collects events.
type told struct {
	events.Discard
	mu  sync.Mutex
	all []events.Event
}

func (p *told) Publish(e events.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, e)
}

// about are those of a kind, of a sidecar; others publish in their own time.
func (p *told) about(k events.Kind, of *side) (out []events.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.all {
		if e.Kind == k && e.Incarnation == uint64(of.self.Incarnation) {
			out = append(out, e)
		}
	}
	return out
}

// alike is one Staging for all sides.
func alike(s Staging) func(string) Staging { return func(string) Staging { return s } }

// stagedCluster is p, two ranks, and d, whose ranks stage.
func stagedCluster(t *testing.T, ranks int32, end func(string) choice.End, stage func(string) Staging) (*rig, *told) {
	r, heard := newRig(t), &told{}
	r.ends, r.stage, r.heard = end, stage, heard
	r.side("p", 0, nil, nil)
	r.side("p", 1, nil, nil)
	for n := range ranks {
		r.side("d", n, nil, nil)
	}
	r.group("p", 2)
	r.group("d", ranks)
	return r, heard
}

func (s *side) links(t *testing.T, q control.LinksQuery) []handoff.Link {
	t.Helper()
	l, err := s.Service().Links(t.Context(), q)
	check(t, err)
	return l.Links
}

// TestLinks: ranks that have not met do, are measured, and watchers and scrapes see what
// was chosen and found.
func TestLinks(t *testing.T) {
	r, heard := stagedCluster(t, 1, func(string) choice.End { return offers("nixl!no library", "tcp") }, alike(wired(choice.Baseline{TCP: 1}, 0)))
	d := r.sides["d/0"]
	for _, l := range d.links(t, control.LinksQuery{}) {
		if l.Finding.Verdict != choice.Unmeasured || l.Choice.Transport != "" || !strings.Contains(l.Finding.Cause, "not met") {
			t.Errorf("before: %+v", l)
		}
	}
	ls := d.links(t, control.LinksQuery{Meet: true, Probe: true})
	if len(ls) != 2 {
		t.Fatalf("%+v", ls)
	}
	for i, l := range ls {
		if l.Peer != r.sides["p/"+string(rune('0'+i))].self || l.Reader != d.self || l.Choice.Transport != choice.TCP || l.Choice.Code != choice.Lacks ||
			l.Finding.Verdict != choice.Good || l.Measured.Rate <= 0 || l.Measured.Latency <= 0 || l.Expected != 1 {
			t.Errorf("%+v", l)
		}
	}
	r.handoff("r1", 40)
	const why = "nixl is not there on d/0: no library"
	for n, err := range d.Service().Watch(t.Context(), control.Cursor{}) {
		check(t, err)
		if n.Kind == control.Linked && n.Link.Finding.Verdict == choice.Good {
			if !strings.Contains(n.Link.Choice.Why, why) {
				t.Errorf("%+v", n.Link)
			}
			break
		}
	}
	for word, want := range map[string]float64{`baton_link_info{`: 2, `baton_link_fallback{`: 2, `baton_link_expected_bytes_per_second{`: 2,
		`moved_bytes_total{backend="tcp"`: 40 * layers * units * unitBytes} {
		if got := d.scrape(t, word); got != want {
			t.Errorf("%s: %v, want %v", word, got, want)
		}
	}
	if es := heard.about(events.Degraded, d); len(es) > 0 {
		t.Errorf("events: %+v", es)
	}
}

// TestSlowLink: a link far below what its host does by itself is called so, with its rank, to
// its leader's watchers and as an event, after more than one look.
func TestSlowLink(t *testing.T) {
	s, looks := wired(choice.Baseline{TCP: 1e12}, 10*time.Millisecond), atomic.Int32{}
	once := s.Baseline
	s.Baseline = func(ctx context.Context) choice.Baseline { looks.Add(1); return once(ctx) }
	r, heard := stagedCluster(t, 2, func(string) choice.End { return offers("tcp") }, alike(s))
	d := r.sides["d/1"]
	ls := d.links(t, control.LinksQuery{Meet: true, Probe: true})
	if n := looks.Load(); n < 2*rounds {
		t.Errorf("%d looks at two links, want %d of each", n, rounds)
	}
	for _, l := range ls {
		if l.Finding.Verdict != choice.Degraded || l.Finding.Fix == "" || !strings.Contains(l.Finding.Cause, "of what plain should bring: one small read takes") {
			t.Errorf("%+v", l)
		}
	}
	n := r.notice("d", 0, control.Linked, "rank 1")
	for n.Link.Finding.Verdict != choice.Degraded {
		n = r.notice("d", n.Seq+1, control.Linked, "rank 1")
	}
	if n.Link.Reader != d.self || n.Link.Peer.Group != "p" {
		t.Errorf("%+v", n.Link)
	}
	es := heard.about(events.Degraded, d)
	if len(es) != 2 || es[0].Peer != "p/0" || es[0].Rank != 1 || !strings.Contains(es[0].Cause, "tcp: degraded: 0% of") {
		t.Errorf("events: %+v", es)
	}
	if len(ls) != 2 {
		t.Errorf("%+v", ls)
	}
}

// TestUnanswered: what was measured before is no answer to who waits for a probe in vain.
func TestUnanswered(t *testing.T) {
	r, _ := stagedCluster(t, 1, func(string) choice.End { return offers("tcp") }, alike(wired(choice.Baseline{TCP: 1}, 0)))
	d := r.sides["d/0"]
	if ls := d.links(t, control.LinksQuery{Meet: true, Probe: true}); len(ls) != 2 || ls[0].Finding.Verdict != choice.Good {
		t.Fatalf("%+v", ls)
	}
	if late, err := d.Service().wait(t.Context(), 1, func(func()) int { return 1 }); !late || err != nil {
		t.Errorf("nothing came: late %v, %v", late, err)
	}
	var asked, known []handoff.Link
	check(t, d.Service().ask(t.Context(), func() {
		a, b := d.pairs[r.sides["p/0"].self], d.pairs[r.sides["p/1"].self]
		a.running, a.failed, b.running, b.failed = true, drive.ErrLate, true, nil
		asked, known = d.allLinks(true, nil), d.allLinks(false, nil)
		a.running, b.running = false, false
	}))
	for i, want := range []choice.Verdict{choice.Broken, choice.Unmeasured} {
		if l := asked[i]; l.Finding.Verdict != want || l.Finding.Cause == "" || l.Finding.Fix == "" || l.Measured.Rate != 0 {
			t.Errorf("%+v, want %s", l, want)
		}
		if l := known[i]; l.Finding.Verdict != choice.Good || l.Measured.Rate == 0 {
			t.Errorf("nobody waits: %+v", l)
		}
	}
}

// TestNoTransport: two ends without a transport in common say so where it is asked for, and
// an import names both.
func TestNoTransport(t *testing.T) {
	r, heard := stagedCluster(t, 1, func(name string) choice.End {
		if name == "d/0" {
			return offers("nixl", "tcp!staging.transport is nixl")
		}
		return offers("tcp", "nixl!staging.transport is tcp")
	}, alike(wired(choice.Baseline{}, 0)))
	d := r.sides["d/0"]
	for _, l := range d.links(t, control.LinksQuery{Meet: true, Probe: true}) {
		if l.Finding.Verdict != choice.Broken || l.Choice.Code != choice.None || l.Choice.Transport != "" {
			t.Errorf("%+v", l)
		}
	}
	if es := heard.about(events.Degraded, d); len(es) != 2 {
		t.Errorf("events: %+v", es)
	}
	man := r.export("p", "r1", 20)
	_, err := r.importNow(t.Context(), "d", man)
	for _, want := range []string{"no transport in common", "nixl is not there on p/", "tcp is not there on d/0: staging.transport is nixl", "auto"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: lacks %q", err, want)
		}
	}
}

// TestMappedLinks: what is mapped is good, and is not probed.
func TestMappedLinks(t *testing.T) {
	r := cluster(t, nil)
	r.handoff("r1", 40)
	for _, l := range r.sides["d/0"].links(t, control.LinksQuery{Probe: true}) {
		if l.Choice.Code != choice.Mapped || l.Finding.Verdict != choice.Good || l.Measured.Rate != 0 {
			t.Errorf("%+v", l)
		}
	}
}

// TestLinkWithoutSession: a rank that discovery shows and that does not answer is named.
func TestLinkWithoutSession(t *testing.T) {
	r := cluster(t, nil)
	p := r.sides["p/1"]
	p.doors() // its sessions end, its record stays
	d := r.sides["d/0"]
	found := false
	for _, l := range d.links(t, control.LinksQuery{Meet: true}) {
		if l.Peer == p.self {
			found = true
			if l.Finding.Verdict != choice.Broken || !strings.Contains(l.Finding.Cause, "no session: ") {
				t.Errorf("%+v", l)
			}
		}
	}
	if !found {
		t.Error("it is not listed")
	}
}

// TestGoneWhileMeeting: whoever waits for a session to a rank that leaves discovery waits no
// more, and is told that it is gone; others are not.
func TestGoneWhileMeeting(t *testing.T) {
	r := newRig(t)
	d := r.side("d", 0, nil, nil)
	gone, ended := handoff.Member{Group: "p", Incarnation: 7}, 0
	view := []discovery.Record{{Group: "p", Incarnation: 7, Role: discovery.Prefill}}
	check(t, d.Service().ask(t.Context(), func() {
		own := append([]discovery.Record{}, d.view...)
		d.seesNow(append(view, own...))
		d.meeting[gone] = append(d.meeting[gone], func() { ended++ })
		d.seesNow(append(view, own...))
		if ended != 0 {
			t.Error("one that is there is called gone")
		}
		d.seesNow(own)
		if ended != 1 || len(d.meeting) != 0 || len(d.unmet) != 0 {
			t.Errorf("%d waits ended, left %v, %v", ended, d.meeting, d.unmet)
		}
		met := []handoff.Member{gone}
		if l := d.allLinks(false, met); len(l) != 1 || l[0].Peer != gone || !strings.Contains(l[0].Finding.Cause, "it is gone") {
			t.Errorf("%+v", l)
		}
		if l := d.allLinks(false, nil); len(l) != 0 {
			t.Errorf("nobody asked for %+v", l)
		}
		d.pairs[gone] = &pair{}
		if l := d.allLinks(true, nil); len(l) != 1 || !strings.Contains(l[0].Finding.Cause, "it is gone") || d.probeAll(func() {}) != 0 {
			t.Errorf("a session with it stands: %+v", l)
		}
		d.seesNow(nil) // of a registry that lost all it had
		if l := d.allLinks(true, nil); len(l) != 1 || !strings.Contains(l[0].Finding.Cause, "it is gone") {
			t.Errorf("nobody is there: %+v", l)
		}
		delete(d.pairs, gone)
		d.seesNow(append(view, own...))
		d.meeting[gone] = append(d.meeting[gone], func() {})
		if l := d.allLinks(false, met); len(l) != 1 || l[0].Finding.Verdict != choice.Broken || !strings.Contains(l[0].Finding.Cause, "not answered") {
			t.Errorf("one that does not answer: %+v", l)
		}
		delete(d.meeting, gone)
	}))
}

// TestStagedRefused: what is said of staging to a sidecar that has none is counted by the name that
// all messages have.
func TestStagedRefused(t *testing.T) {
	r := newRig(t)
	d := r.side("d", 0, nil, nil)
	check(t, d.Service().ask(t.Context(), func() {
		if !d.staging.hears(d.Sidecar, handoff.Member{Group: "p", Incarnation: 7}, handoff.StagedCredit{Offer: 1}) {
			t.Error("it is the machine's")
		}
	}))
	st, err := d.Service().Status(t.Context())
	if check(t, err); st.Counters["refused.StagedCredit"] != 1 {
		t.Errorf("%v", st.Counters)
	}
}

// TestLongCause: what a wire mover said at its end is longer than a message may be, and no
// UTF-8. It breaks a link, and no session: the leader hears of it.
func TestLongCause(t *testing.T) {
	said := errors.New("no driver\n" + strings.Repeat("\xff goroutine", 1<<10))
	for _, group := range []string{"p", "d"} {
		t.Run(group, func(t *testing.T) {
			bad := wired(choice.Baseline{}, 0)
			bad.Start = func(context.Context, drive.Route, staged.Incarnation, transfer.Memory) (drive.Mover, error) {
				return nil, said
			}
			r, _ := stagedCluster(t, 2, func(string) choice.End { return offers("tcp") }, func(name string) Staging {
				if name[:1] == group {
					return bad
				}
				return wired(choice.Baseline{}, 0)
			})
			d := r.sides["d/1"]
			for _, l := range d.links(t, control.LinksQuery{Meet: true, Probe: true}) {
				if l.Finding.Verdict != choice.Broken || !strings.Contains(l.Finding.Cause, "no driver") {
					t.Errorf("%.200s", l.Finding)
				}
				if _, err := codec.ToLink(l); err != nil {
					t.Error(err)
				}
			}
			n := r.notice("d", 0, control.Linked, "rank 1")
			for n.Link.Finding.Verdict != choice.Broken {
				n = r.notice("d", n.Seq+1, control.Linked, "rank 1")
			}
		})
	}
}

// TestStandingLinks: a link that is mapped, and whose group has a wire mover for another of
// its ranks, takes no turn of those that are measured.
func TestStandingLinks(t *testing.T) {
	r, _ := stagedCluster(t, 1, func(name string) choice.End {
		if name == "p/1" {
			return offers("shm!staging.when is always", "tcp")
		}
		return offers("shm", "tcp")
	}, alike(wired(choice.Baseline{}, 0)))
	d := r.sides["d/0"]
	d.links(t, control.LinksQuery{Meet: true, Probe: true})
	var got []handoff.Member
	check(t, d.Service().ask(t.Context(), func() { got = d.staging.standing() }))
	if want := r.sides["p/1"].self; len(got) != 1 || got[0] != want {
		t.Errorf("%v, want %v alone", got, want)
	}
}
