package adapter

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// State is everything that an adapter is told of its group, at one instant.
type State struct {
	Group Group
	// Handoffs are held or running, sorted by ID, at most MaxHandoffs. Err is always nil: an
	// import that failed is a notice.
	Handoffs []control.Info
	More     bool // others are held or running too
}

// Group is a group and how its leader sees it.
type Group struct {
	Cluster, Pool, Name, Tenant string
	Role                        discovery.Role
	Status                      control.Status // of rank 0, the leader; without Counters
	// Of the attached engine; zero before the group was complete.
	Model        string
	WeightsEpoch uint64
	Geometry     [32]byte // digest of model and shards
}

// Update is what changed since the last call. Apply makes the newest state of it.
type Update struct {
	// Whole is set when the adapter fell behind, or the sidecar lost notices: the whole state
	// in place of what changed. Lost counts the notices that it is not told. All else is empty.
	Whole *State
	Lost  uint64

	Group   *Group           // nil: as before
	Changed []control.Info   // are held or running: new ones, and old ones in their newest phase; sorted by ID
	Gone    []handoff.ID     // are not held or running any more; sorted
	More    bool             // as in State
	Notices []control.Notice // of the kinds that it wants, oldest first, at most MaxNotices
}

// Compare orders hand-offs.
func Compare(a, b handoff.ID) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Leader, b.Leader), cmp.Compare(a.N, b.N))
}

func byID(a, b control.Info) int { return Compare(a.ID, b.ID) }

// Diff is the update that makes next of s. It shares memory with next.
func (s State) Diff(next State) Update {
	u := Update{More: next.More}
	if !reflect.DeepEqual(s.Group, next.Group) {
		u.Group = &next.Group
	}
	old, fresh := s.Handoffs, next.Handoffs
	for len(old) > 0 || len(fresh) > 0 {
		switch c := order(old, fresh); {
		case c < 0:
			u.Gone = append(u.Gone, old[0].ID)
			old = old[1:]
		case c > 0:
			u.Changed = append(u.Changed, fresh[0])
			fresh = fresh[1:]
		default:
			if !same(old[0], fresh[0]) {
				u.Changed = append(u.Changed, fresh[0])
			}
			old, fresh = old[1:], fresh[1:]
		}
	}
	return u
}

// same compares but for Err, whose dynamic type may not be comparable.
func same(a, b control.Info) bool {
	a.Err, b.Err = nil, nil
	return a == b
}

// order compares the first of two sorted lists; one that is over comes last.
func order(a, b []control.Info) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return byID(a[0], b[0])
}

// Apply returns s after u and changes neither. The Update may come from anywhere: what s
// does not have cannot go.
func (s State) Apply(u Update) State {
	if u.Whole != nil {
		return *u.Whole
	}
	if u.Group != nil {
		s.Group = *u.Group
	}
	by := make(map[handoff.ID]control.Info, len(s.Handoffs)+len(u.Changed))
	for _, list := range [][]control.Info{s.Handoffs, u.Changed} {
		for _, i := range list {
			by[i.ID] = i
		}
	}
	for _, id := range u.Gone {
		delete(by, id)
	}
	s.Handoffs = nil
	for _, i := range by {
		s.Handoffs = append(s.Handoffs, i)
	}
	slices.SortFunc(s.Handoffs, byID)
	s.More = u.More
	return s
}

// Same reports whether u, made from s, changes nothing of it and tells of nothing.
func (s State) Same(u Update) bool {
	return u.Whole == nil && u.Group == nil && len(u.Changed)+len(u.Gone)+len(u.Notices) == 0 && u.More == s.More
}
