package e2e

import (
	"crypto/tls"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/peer"
	"github.com/batonkv/baton/sidecar/peer/fd"
)

func (w *world) member(k *dev.Rank) handoff.Member {
	w.t.Helper()
	st, err := w.dial(k.Sidecar.Addr, "control").Status(bounded(w.t))
	if err != nil {
		w.t.Fatal(err)
	}
	return st.Self
}

// refusals are a sidecar's counters of what it refused; strangers' own pings for buffers
// are left out.
func (w *world) refusals(k *dev.Rank) (n uint64) {
	w.t.Helper()
	st, err := w.dial(k.Sidecar.Addr, "control").Status(bounded(w.t))
	if err != nil {
		w.t.Fatal(err)
	}
	for name, c := range st.Counters {
		if strings.HasPrefix(name, "refused.") && name != "refused.WantBuffers" {
			n += c
		}
	}
	return n
}

// mallory is a sidecar of another group of the same tenant, with its own certificate.
var mallory = handoff.Member{Group: "mallory", Incarnation: 66}

// TestForbidden: a sidecar of the tenant without the key of a hand-off reads nothing,
// consumes nothing and ends nothing, whatever it says, and its words are counted. Who
// has the key is let in: that is what the key is for.
func TestForbidden(t *testing.T) {
	w := up(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid")
	ctx, p := bounded(t), prompt(1, 3*block)
	old, err := w.export(ctx, w.prefill, "old", prompt(2, 40))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.bring(ctx, w.decode, old, "old", prompt(2, 40)); err != nil {
		t.Fatal(err)
	}
	other, err := w.export(ctx, w.prefill, "other", prompt(3, 40))
	if err != nil {
		t.Fatal(err)
	}
	man, err := w.export(ctx, w.prefill, "a", p)
	if err != nil {
		t.Fatal(err)
	}
	x := w.stranger(mallory, certs.SidecarID("dev", "default", "mallory", 0), nil)
	w.forgedImports(x, man, other, old)
	w.othersWords(x, man)
	w.guesses(x)
	for _, m := range []handoff.Manifest{man, other} {
		if info, err := w.prefill.Leader.Get(ctx, m.ID); err != nil || info.Phase != control.Held || info.Copies != 1 {
			t.Errorf("%s is %+v (%v), want held with its copy", m.Label, info, err)
		}
	}
	w.withTheKey(x, other)
	m, err := w.bring(ctx, w.decode, man, "a", p)
	if err != nil {
		t.Fatalf("who should have it: %v", err)
	}
	w.equal("a", p, m.tokens)
	if err := w.prefill.Leader.Release(ctx, other.ID, other.Key); err != nil {
		t.Error(err)
	}
	w.nothingHeld()
}

// own is a claim of a stranger's own.
func (x *stranger) own(m handoff.Manifest, n handoff.Attempt) handoff.Open {
	return handoff.Open{ID: m.ID, Key: m.Key, Attempt: n,
		Importer: handoff.Importer{Group: x.self.Group, Instance: x.geometry.Instance, Leader: x.self.Incarnation}}
}

// forgedImports opens what it may not, by wrong, old, altered and mixed manifests.
func (w *world) forgedImports(x *stranger, man, other, old handoff.Manifest) {
	w.t.Helper()
	k := w.prefill.Ranks[0]
	s, err := x.enter(k.Sidecar.Addr, w.member(k))
	if err != nil {
		w.t.Fatal(err)
	}
	defer w.leave(x, s)
	wrong, mixed, earlier, unknown, launch := man, man, man, man, man
	wrong.Key[5]++
	mixed.Key = other.Key
	earlier.ID.Leader++
	unknown.ID.N += 1000
	launch.ID.Instance++
	for n, m := range []handoff.Manifest{wrong, mixed, earlier, unknown, launch, old} {
		was := w.refusals(k)
		out := x.say(s, x.own(m, handoff.Attempt(n+1)))
		if len(out) != 1 {
			w.t.Errorf("manifest %d: answered %+v", n, out)
			continue
		}
		if o, ok := out[0].(handoff.Opened); !ok || o.Status != handoff.Gone || o.Pins != nil || len(o.Resume.Tokens) > 0 || o.Tokens != 0 {
			w.t.Errorf("manifest %d: answered %+v", n, out[0])
		}
		out = x.say(s, handoff.Done{ID: m.ID, Importer: x.own(m, 0).Importer, Attempt: handoff.Attempt(n + 1)})
		if a, ok := out[0].(handoff.DoneAck); !ok || a.Status != handoff.Gone {
			w.t.Errorf("manifest %d: Done of what was not opened: %+v", n, out)
		}
		if x.say(s, handoff.Withdraw{ID: m.ID, Importer: x.own(m, 0).Importer, Attempt: 1}); n < 2 && w.refusals(k) == was {
			w.t.Errorf("manifest %d: a wrong key is not counted", n)
		}
	}
}

// othersWords speaks in decode's name, and as a member of groups that it is none of.
func (w *world) othersWords(x *stranger, man handoff.Manifest) {
	w.t.Helper()
	decode := w.member(w.decode.Ranks[0])
	as := handoff.Importer{Group: decode.Group, Instance: handoff.Instance(w.decode.Instance), Leader: decode.Incarnation}
	first := handoff.Attempt(decode.Incarnation) + 1
	for _, g := range w.Groups {
		for rank, k := range g.Ranks {
			s, err := x.enter(k.Sidecar.Addr, w.member(k))
			if err != nil {
				w.t.Fatal(err)
			}
			for _, m := range []handoff.PeerMessage{
				handoff.Open{ID: man.ID, Key: man.Key, Importer: as, Attempt: first},
				handoff.Done{ID: man.ID, Importer: as, Attempt: first}, handoff.Withdraw{ID: man.ID, Importer: as, Attempt: first},
				handoff.Opened{ID: man.ID, Attempt: first, Status: handoff.OK}, handoff.DoneAck{ID: man.ID, Attempt: first, Status: handoff.OK},
				handoff.Join{Attach: handoff.Attach{Group: g.Name, Instance: handoff.Instance(g.Instance), Ranks: g.TP}},
				handoff.Roster{Instance: handoff.Instance(g.Instance), Members: []handoff.Member{x.self}}, x.geometry,
				handoff.Decision{N: 1000, Kind: handoff.Free, ID: man.ID, Label: "a"}, handoff.Leased{ID: man.ID, Label: "a", Pin: 1, Hold: 1},
				handoff.Unpin{ID: man.ID, Pin: 1}, handoff.Pinned{Label: "a"}, handoff.RankHeld{N: 1000}, handoff.RankApplied{N: 1000},
				handoff.RankReserved{}, handoff.Landed{ID: man.ID, N: 1, OK: true, Quiet: true},
				handoff.Checked{Check: handoff.Check{ID: man.ID}, Held: true},
			} {
				was := w.refusals(k)
				if out := x.say(s, m); len(out) > 0 {
					w.t.Errorf("%s/%d answers %T with %+v", g.Name, rank, m, out)
				}
				if _, ok := m.(handoff.Checked); !ok && w.refusals(k) == was {
					w.t.Errorf("%s/%d: %T is not counted", g.Name, rank, m)
				}
			}
			w.leave(x, s)
		}
	}
}

// guesses tries pins and descriptors' keys.
func (w *world) guesses(x *stranger) {
	w.t.Helper()
	for _, k := range w.prefill.Ranks {
		s, err := x.enter(k.Sidecar.Addr, w.member(k))
		if err != nil {
			w.t.Fatal(err)
		}
		for pin := range handoff.PinID(20) {
			x.say(s, handoff.WantBuffers{Pin: pin}) // say finds no buffers in the answer
			for generation := range handoff.Generation(3) {
				out := x.say(s, handoff.Check{Pin: pin, Generation: generation})
				if c, ok := out[0].(handoff.Checked); !ok || c.Held {
					w.t.Errorf("pin %d: %+v", pin, out)
				}
			}
			if _, err := fd.Fetch(bounded(w.t), filepath.Join(k.Sidecar.Engine, fd.Socket), uint64(pin), 1); !errors.Is(err, handoff.ErrGone) {
				w.t.Errorf("a descriptor for a guess: %v", err)
			}
		}
		w.leave(x, s)
	}
}

// withTheKey is let in, and told of what it opened alone.
func (w *world) withTheKey(x *stranger, man handoff.Manifest) {
	w.t.Helper()
	k := w.prefill.Ranks[0]
	s, err := x.enter(k.Sidecar.Addr, w.member(k))
	if err != nil {
		w.t.Fatal(err)
	}
	defer w.leave(x, s)
	open := x.own(man, 100)
	refused := x.say(s, open)[0].(handoff.Opened) // the plan is told to who shows the key
	if open.Plan = refused.Plan; refused.Status != handoff.Refused || refused.Pins != nil {
		w.t.Fatalf("another plan: %+v", refused)
	}
	open.Attempt++
	opened, ok := x.say(s, open)[0].(handoff.Opened)
	if !ok || opened.Status != handoff.OK || len(opened.Pins) != 2 {
		w.t.Fatalf("the right key: %+v", opened)
	}
	if err := s.Send(handoff.WantBuffers{Pin: opened.Pins[0].Pin}); err != nil {
		w.t.Fatal(err)
	}
	if b, ok := x.next().msg.(handoff.Buffers); !ok || len(b.Cards) == 0 {
		w.t.Errorf("buffers for a held pin: %+v", b)
	}
	x.say(s, handoff.Withdraw{ID: man.ID, Importer: open.Importer, Attempt: open.Attempt})
	if a := x.say(s, handoff.Done{ID: man.ID, Importer: open.Importer, Attempt: open.Attempt})[0].(handoff.DoneAck); a.Status != handoff.Gone {
		w.t.Errorf("Done after Withdraw: %v", a.Status)
	}
}

// leave ends a session and waits for its end.
func (w *world) leave(x *stranger, s *peer.Session) {
	w.t.Helper()
	s.Close(nil)
	for !x.next().end {
	}
}

// TestNotLetIn: without the certificate of a sidecar of this cluster and tenant, whose
// group and rank are the ones that it says, there is no session; each try is counted.
func TestNotLetIn(t *testing.T) {
	w := up(t, "tp=1,role=prefill+tp=1,role=decode", "attention")
	k := w.prefill.Ranks[0]
	victim, decode := w.member(k), w.member(w.decode.Ranks[0])
	strange, err := certs.NewCA("another", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		self handoff.Member
		id   certs.Identity
		ca   *certs.CA
	}{
		{"another tenant", mallory, certs.SidecarID("dev", "other", "mallory", 0), nil},
		{"another cluster", mallory, certs.SidecarID("prod", "default", "mallory", 0), nil},
		{"another rank", handoff.Member{Group: "mallory", Rank: 1, Incarnation: 6}, certs.SidecarID("dev", "default", "mallory", 0), nil},
		{"the name of decode", handoff.Member{Group: decode.Group, Incarnation: 6}, certs.SidecarID("dev", "default", "mallory", 0), nil},
		{"decode itself, by its incarnation", decode, certs.SidecarID("dev", "default", "mallory", 0), nil},
		{"a control plane", mallory, certs.Identity{Kind: certs.Control, Name: "dev"}, nil},
		{"another CA", mallory, certs.SidecarID("dev", "default", "mallory", 0), strange},
	} {
		t.Run(c.what, func(t *testing.T) {
			was := w.refusals(k)
			x := w.stranger(c.self, c.id, c.ca)
			s, err := x.enter(k.Sidecar.Addr, victim)
			if err == nil { // the end may follow the Hello
				_ = s.Send(handoff.WantGeometry{})
				if h := x.next(); !h.end {
					t.Fatalf("it is let in, and hears %+v", h.msg)
				}
			}
			eventually(t, "it is counted", func() bool { return w.refusals(k) > was })
		})
	}
	was := w.refusals(k)
	conn, err := tls.Dial("tcp", k.Sidecar.Addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // TLS 1.3 tells a client after its own part
		conn.Close()
	}
	if err == nil {
		t.Error("somebody without a certificate is served")
	}
	eventually(t, "it is counted", func() bool { return w.refusals(k) > was })
	w.handoff("unharmed", prompt(1, 40))
}
