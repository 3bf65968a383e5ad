package mem

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/discoverytest"
)

// clock stands until it is moved.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func TestSuite(t *testing.T) {
	discoverytest.Run(t, func(t *testing.T) discoverytest.World {
		const ttl = 10 * time.Second
		clk := &clock{t: time.Unix(1, 0)}
		store := New(clk.now, ttl)
		return discoverytest.World{
			Open: func(t *testing.T, alive discoverytest.Alive) discovery.Registry {
				g := store.Open(Config{Alive: alive})
				t.Cleanup(func() { g.Close() })
				return g
			},
			Expire: func(t *testing.T, r discovery.Registration) {
				store.Orphan(r)
				clk.move(ttl)
				store.Sweep()
			},
		}
	})
}

func TestExpiresAtTTLAndNotBefore(t *testing.T) {
	clk := &clock{t: time.Unix(1, 0)}
	store := New(clk.now, 10*time.Second)
	g := store.Open(Config{})
	r := discovery.Record{
		Cluster: "c", Pool: "p", Group: "g", Incarnation: 1, Role: discovery.Both,
		Tenant: "t", Host: "h", PID: 1, Addr: "h:1",
	}
	reg, err := g.Register(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	clk.move(time.Hour)
	store.Sweep()
	if err := reg.Update(t.Context(), r); err != nil {
		t.Fatalf("a renewed registration: %v", err)
	}
	store.Orphan(reg)
	clk.move(10*time.Second - 1)
	if err := reg.Update(t.Context(), r); err != nil {
		t.Fatalf("just before its time: %v", err)
	}
	clk.move(1)
	if err := reg.Update(t.Context(), r); !errors.Is(err, discovery.ErrLost) {
		t.Fatalf("at its time: %v", err)
	}
}
