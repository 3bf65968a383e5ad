package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/mem"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// becomes waits until a sidecar's health says word; empty: that it is well.
func (s *side) becomes(word string) {
	for {
		err := s.Healthy()
		if word == "" && err == nil || word != "" && err != nil && strings.Contains(err.Error(), word) {
			return
		}
		runtime.Gosched()
	}
}

// Health names what lacks, from the outside in.
func TestHealthy(t *testing.T) {
	r := newRig(t)
	other := r.store.Open(mem.Config{})
	held, err := other.Register(t.Context(), discovery.Record{Cluster: "c", Pool: "m", Group: "p", Rank: 0, Incarnation: 9,
		Role: discovery.Both, Tenant: "t", Host: "h", PID: 99, Started: 1, Addr: "h:1"})
	check(t, err)
	p := r.side("p", 0, nil, nil)
	p.becomes("not registered: the rank is held by pid 99 on host h")
	check(t, held.Close(t.Context()))
	p.becomes("no engine is attached")
	half := r.side("p", 1, nil, nil)
	half.becomes("no engine is attached")
	r.group("p", 2)
	p.becomes("")
	half.becomes("")
	half.engine.Close()
	p.becomes("group is not complete: of 2 ranks, not here are [1]")
	half.becomes("no engine is attached")
}

// A rank under another instance is not here, and said to be there.
func TestHealthyLaunches(t *testing.T) {
	r := newRig(t)
	p, other := r.side("p", 0, nil, nil), r.side("p", 1, nil, nil)
	r.group("p", 2)
	p.becomes("")
	other.engine.Close()
	p.becomes("not here are [1]")
	r.attach(other, attachOf("p", handoff.Instance(Random()), 1, 2))
	p.becomes("of 2 ranks, not here are [1]; under another instance are [1]")
}

func TestHealthyMover(t *testing.T) {
	r := newRig(t)
	p := r.side("p", 0, nil, nil)
	r.group("p", 1)
	p.becomes("")
	p.pid.Store(0)
	p.becomes("mover is not running")
}

type refusing struct {
	discovery.Registry
	err error
}

func (g refusing) Register(context.Context, discovery.Record) (discovery.Registration, error) {
	return nil, g.err
}

// A record that discovery refuses ends the sidecar; nothing else does.
func TestRefusedRecord(t *testing.T) {
	r := newRig(t)
	p := r.side("p", 0, nil, func(in discovery.Registry) discovery.Registry { return refusing{in, discovery.ErrRecord} })
	<-p.over
	if err := p.stopped(); !errors.Is(err, discovery.ErrRecord) {
		t.Fatal(err)
	}
	d := r.side("d", 0, nil, func(in discovery.Registry) discovery.Registry { return refusing{in, discovery.ErrDown} })
	d.becomes("not registered: " + discovery.ErrDown.Error())
	if err := d.stopped(); err != nil {
		t.Fatal(err)
	}
}

// updates is a registration whose Update does f.
type updates struct {
	discovery.Registration
	f func(discovery.Record) error
}

func (u updates) Update(_ context.Context, r discovery.Record) error { return u.f(r) }
func (u updates) Lost() <-chan struct{}                              { return nil }

// An update that failed is tried again, and brings what is newest by then.
func TestUpdateTriesAgain(t *testing.T) {
	s := New(Config{Publisher: events.Discard{}, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	var got []int32
	u := updates{f: func(r discovery.Record) error {
		switch got = append(got, r.Ranks); len(got) {
		case 1:
			s.advertise(machine.Advertise{Ranks: 2})
			return discovery.ErrDown
		case 2:
			return discovery.ErrDown
		}
		cancel()
		return nil
	}}
	s.advertise(machine.Advertise{Ranks: 1})
	var rec discovery.Record
	if err := s.keep(ctx, u, &rec); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got[1] != 2 || got[2] != 2 || rec.Ranks != 2 {
		t.Errorf("updates %v, kept %d", got, rec.Ranks)
	}
	u.f = func(discovery.Record) error { return discovery.ErrRecord }
	s.advertise(machine.Advertise{})
	if err := s.keep(t.Context(), u, &rec); !errors.Is(err, discovery.ErrRecord) {
		t.Errorf("a refused update: %v", err)
	}
}

func TestTrouble(t *testing.T) {
	var tr trouble
	for i, c := range []struct {
		err   string
		wait  time.Duration
		fresh bool
	}{
		{"a", 500 * time.Millisecond, true}, {"a", time.Second, false}, {"a", 2 * time.Second, false}, {"b", 4 * time.Second, true},
		{"b", 5 * time.Second, false}, {"a", 5 * time.Second, true},
	} {
		if wait, fresh := tr.failed(errors.New(c.err)); wait != c.wait || fresh != c.fresh {
			t.Errorf("%d: pause %v, told %v", i, wait, fresh)
		}
	}
}

// A peer is who its certificate says, and one without a name is nobody.
func TestIdentified(t *testing.T) {
	want := ""
	s := New(Config{Publisher: events.Discard{}, Log: slog.New(slog.DiscardHandler), Identify: func(g string, n int32) string {
		if want == "" {
			return ""
		}
		return fmt.Sprintf(want, g, n)
	}})
	p := handoff.Member{Group: "g", Rank: 3, Incarnation: 1}
	if err := s.identified(p, ""); !errors.Is(err, handoff.ErrPeer) {
		t.Errorf("no name: %v", err)
	}
	want = "baton://c/t/%s/%d"
	for id, good := range map[string]bool{"baton://c/t/g/3": true, "baton://c/t/g/2": false, "baton://c/u/g/3": false, "": false} {
		if err := s.identified(p, id); (err == nil) != good {
			t.Errorf("%q: %v", id, err)
		}
	}
}
