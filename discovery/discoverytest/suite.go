// Package discoverytest is the one suite that every discovery.Registry passes.
package discoverytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
)

// Alive says whether the process of this host with pid and start time lives.
type Alive = func(pid int32, started uint64) bool

// World is one place for records that several processes share.
type World struct {
	// Open is the place as one more process sees it; it is closed when the test ends.
	Open func(t *testing.T, alive Alive) discovery.Registry
	// Expire ends a registration as if its process had died a lease's time ago.
	Expire func(t *testing.T, r discovery.Registration)
}

// patience ends a test that waits for what never comes.
const patience = 30 * time.Second

// Run checks the contract against worlds that open makes. Every subtest uses a
// cluster of its own, so the worlds may share a server.
func Run(t *testing.T, open func(t *testing.T) World) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w World, cluster string)
	}{
		{"register-and-close", registerAndClose},
		{"refuses-bad-records", refusesBadRecords},
		{"taken-by-living-process", takenByLiving},
		{"taken-on-another-host", takenElsewhere},
		{"waits-for-close", waitsForClose},
		{"waits-for-expiry", waitsForExpiry},
		{"takes-over-from-the-dead", takesOver},
		{"own-incarnation-again", ownAgain},
		{"one-of-many-wins", oneOfManyWins},
		{"update", update},
		{"expiry-is-lost", expiryIsLost},
		{"watch-newest-wins", watchNewestWins},
		{"watch-scope", watchScope},
		{"watch-ends-with-an-error", watchEnds},
		{"many-watchers", manyWatchers},
		{"registry-close-removes", registryClose},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, open(t), "t-"+c.name)
		})
	}
}

func record(cluster string, rank int32, incarnation uint64) discovery.Record {
	return discovery.Record{
		Cluster: cluster, Pool: "pool", Group: "group", Rank: rank, Incarnation: incarnation,
		Role: discovery.Both, Tenant: "tenant", Host: "host-a", PID: 100 + int32(incarnation),
		Started: 7 * incarnation, Addr: fmt.Sprintf("127.0.0.1:%d", 7000+incarnation), Transports: []string{"shm"},
	}
}

func always(alive bool) Alive { return func(int32, uint64) bool { return alive } }

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, g discovery.Registry, r discovery.Record) discovery.Registration {
	t.Helper()
	reg, err := g.Register(patient(t), r)
	if err != nil {
		t.Fatalf("register %s, incarnation %d: %v", r.Name(), r.Incarnation, err)
	}
	return reg
}

func closeIt(t *testing.T, r discovery.Registration) {
	t.Helper()
	if err := r.Close(patient(t)); err != nil {
		t.Errorf("close: %v", err)
	}
}

func waitLost(t *testing.T, r discovery.Registration) {
	t.Helper()
	select {
	case <-r.Lost():
	case <-patient(t).Done():
		t.Fatal("the registration is gone and Lost is open")
	}
}

func notLost(t *testing.T, r discovery.Registration) {
	t.Helper()
	select {
	case <-r.Lost():
		t.Error("Lost is closed under a registration that lives")
	default:
	}
}

// until reads snapshots of scope until ok says yes, and gives that one. Revisions rise
// and records are sorted all along.
func until(t *testing.T, g discovery.Registry, scope discovery.Scope, ok func([]discovery.Record) bool) []discovery.Record {
	t.Helper()
	rev, seen := int64(-1), "nothing"
	for s, err := range g.Watch(patient(t), scope) {
		if err != nil {
			t.Fatalf("watch: %v; last seen: %s", err, seen)
		}
		if s.Rev < rev {
			t.Errorf("revision %d after %d", s.Rev, rev)
		}
		if !slices.IsSortedFunc(s.Records, discovery.Compare) {
			t.Errorf("not sorted: %+v", s.Records)
		}
		if ok(s.Records) {
			return s.Records
		}
		rev, seen = s.Rev, fmt.Sprintf("%+v", s.Records)
	}
	t.Fatal("the watch ended without an error item")
	return nil
}

func all(cluster string) discovery.Scope { return discovery.Scope{Cluster: cluster} }

func count(n int) func([]discovery.Record) bool {
	return func(rs []discovery.Record) bool { return len(rs) == n }
}

// pending is a Register that runs beside the test.
type pending struct {
	reg  discovery.Registration
	err  error
	done chan struct{}
}

func register(ctx context.Context, g discovery.Registry, r discovery.Record) *pending {
	p := &pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.reg, p.err = g.Register(ctx, r)
	}()
	return p
}

func (p *pending) wait(t *testing.T) (discovery.Registration, error) {
	t.Helper()
	select {
	case <-p.done:
	case <-patient(t).Done():
		t.Fatal("Register does not return")
	}
	return p.reg, p.err
}

// asked is an Alive that says true and tells the first time that it is asked: from
// then on Register waits for the holder.
func asked() (Alive, <-chan struct{}) {
	ch := make(chan struct{}, 1)
	return func(int32, uint64) bool {
		select {
		case ch <- struct{}{}:
		default:
		}
		return true
	}, ch
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v; want %v", what, err, want)
	}
}
