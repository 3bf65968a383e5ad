package route

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// snapshot is one view of the cluster; immutable.
type snapshot struct {
	groups  []plugins.Group
	leaders map[string]discovery.Record // rank 0, by group
	ranks   map[string]int              // registered, by group
	records []discovery.Record
}

func newSnapshot(s discovery.Snapshot) *snapshot {
	v := &snapshot{leaders: map[string]discovery.Record{}, ranks: map[string]int{}, records: s.Records}
	for i := 0; i < len(s.Records); {
		j := i + 1
		for j < len(s.Records) && s.Records[j].Pool == s.Records[i].Pool && s.Records[j].Group == s.Records[i].Group {
			j++
		}
		g := groupOf(s.Records[i:j])
		v.groups = append(v.groups, g)
		v.ranks[g.Name] += j - i
		if s.Records[i].Rank == 0 {
			v.leaders[g.Name] = s.Records[i]
		}
		i = j
	}
	return v
}

// groupOf makes a group of its records, which are sorted by rank. What is said of the
// engine is the leader's word.
func groupOf(rs []discovery.Record) plugins.Group {
	first := rs[0]
	g := plugins.Group{Cluster: first.Cluster, Pool: first.Pool, Name: first.Group, Tenant: first.Tenant, Role: first.Role,
		Instance: handoff.Instance(first.Instance), Size: first.Ranks, Draining: first.Draining, Geometry: first.Geometry,
		CapacityBlocks: first.CapacityBlocks, CapacitySlots: first.CapacitySlots}
	g.Complete = first.Rank == 0 && first.Instance != 0 && int(first.Ranks) == len(rs)
	for _, r := range rs {
		g.Ranks = append(g.Ranks, plugins.Rank{Member: handoff.Member{Group: r.Group, Rank: layout.Rank(r.Rank), Incarnation: handoff.Incarnation(r.Incarnation)},
			Host: r.Host, PID: r.PID, Addr: r.Addr, Transports: r.Transports})
	}
	return g
}

func (s *snapshot) leader(group string) (discovery.Record, error) {
	if r, ok := s.leaders[group]; ok {
		return r, nil
	}
	if n := s.ranks[group]; n > 0 {
		return discovery.Record{}, fmt.Errorf("%w: group %s: its leader, rank 0, is not registered, %d other ranks are: start its sidecar, or wait until it is started",
			handoff.ErrNotReady, group, n)
	}
	return discovery.Record{}, unknown(group, s)
}

// shows reports whether the process of a record is in view.
func (s *snapshot) shows(rec discovery.Record) bool {
	return slices.ContainsFunc(s.records, func(r discovery.Record) bool {
		return r.Pool == rec.Pool && r.Name() == rec.Name() && r.Incarnation == rec.Incarnation
	})
}

// nearest is a name that differs from group by a part before or after.
func (s *snapshot) nearest(group string) string {
	for _, g := range s.groups {
		if group != "" && (strings.HasPrefix(g.Name, group) || strings.HasPrefix(group, g.Name)) {
			return g.Name
		}
	}
	return ""
}

// view holds the newest snapshot.
type view struct {
	mu      sync.Mutex // guards:
	now     *snapshot  // nil before the first
	rev     int64      // counts changes
	err     error      // of the newest attempt to watch, nil while it goes on
	changed chan struct{}
}

func newView() *view { return &view{changed: make(chan struct{})} }

func (v *view) set(s *snapshot, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.err = err; s != nil {
		v.now = s
		v.rev++
	}
	close(v.changed)
	v.changed = make(chan struct{})
}

// get is the newest snapshot, its number, the channel that closes at the next change, and why
// the view may be stale.
func (v *view) get() (*snapshot, int64, <-chan struct{}, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now, v.rev, v.changed, v.err
}

// first waits for a snapshot. With one, a stale view is better than none.
func (v *view) first(ctx context.Context) (*snapshot, error) {
	for {
		s, _, changed, err := v.get()
		if s != nil || err != nil {
			if s != nil {
				err = nil
			}
			return s, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: no answer from discovery yet: %w", discovery.ErrDown, ctx.Err())
		}
	}
}

// How long after a watch of discovery broke the next one begins: it doubles.
const (
	againMin = 50 * time.Millisecond
	againMax = 5 * time.Second
)

// run watches until ctx ends; each hears every snapshot.
func (v *view) run(ctx context.Context, watch Source, log *slog.Logger, each func(*snapshot)) {
	wait := againMin
	for ctx.Err() == nil {
		for s, err := range watch(ctx) {
			if err != nil {
				if ctx.Err() == nil {
					log.Warn("the view of the cluster is stale", "err", err, "again", wait)
					v.set(nil, err)
				}
				break
			}
			s.Records = slices.Clone(s.Records)
			slices.SortFunc(s.Records, byName)
			next := newSnapshot(s)
			each(next)
			v.set(next, nil)
			wait = againMin
		}
		pause.For(ctx, wait)
		wait = min(2*wait, againMax)
	}
}

func byName(a, b discovery.Record) int {
	if c := strings.Compare(a.Pool, b.Pool); c != 0 {
		return c
	}
	if c := strings.Compare(a.Group, b.Group); c != 0 {
		return c
	}
	return int(a.Rank - b.Rank)
}
