// Package discovery tells sidecars and control planes who is alive.
//
// One record per sidecar process, one registration (lease) that keeps it. A record
// says who and where, never load per request. Implementations: discovery/etcd and
// discovery/mem; discoverytest is their one suite. Pure but for the contract's
// contexts; nothing here names an implementation.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"regexp"
)

var (
	ErrLost   = errors.New("discovery: registration lost")
	ErrTaken  = errors.New("discovery: rank already registered") // a live other incarnation holds the key
	ErrRecord = errors.New("discovery: bad record")
	ErrDown   = errors.New("discovery: not reachable")
)

// Role is what a group does.
type Role string

const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
	Both    Role = "both"
)

// MaxRecord bounds an encoded record; anything larger is asked of the sidecar itself.
const MaxRecord = 2 << 10

// Record is one sidecar: one rank of one group, one process life.
type Record struct {
	Cluster, Pool, Group string // [a-z0-9-], 1 to 63 bytes: valid in etcd paths and NATS subjects
	Rank                 int32
	Incarnation          uint64 // random, new at every start
	Instance             uint64 // group_instance of the attached engine; 0 before an engine attached
	Ranks                int32  // size of the group; 0 before an engine attached
	Role                 Role
	Tenant               string
	Host                 string // host id: equal on one host only
	PID                  int32
	Started              uint64 // start time of the process, clock ticks since boot: tells a reused pid
	PIDSpace             uint64 // PID namespace of the process, inode; 0: unknown. PID means something in it alone
	Addr                 string // host:port of the sidecar's peer and control services
	Geometry             string // digest of the group's geometry, hex
	Transports           []string
	CapacityBlocks       int32 // class of what the engine has, free or not: rounded down to a power of two
	CapacitySlots        int32
	Draining             bool // of rank 0: its group takes no new work
}

// Name is the identity that outlives a process: cluster, pool, group and rank.
func (r Record) Name() string {
	return fmt.Sprintf("%s/%s/%s/%d", r.Cluster, r.Pool, r.Group, r.Rank)
}

var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckName says whether s may name a cluster, pool, group or tenant.
func CheckName(field, s string) error {
	if !name.MatchString(s) {
		return fmt.Errorf("%w: %s %q: want 1 to 63 of a-z, 0-9 and -, not at the ends", ErrRecord, field, s)
	}
	return nil
}

// Snapshot is every live record of one scope at revision Rev.
type Snapshot struct {
	Rev     int64
	Records []Record // sorted by (Cluster, Pool, Group, Rank)
}

// Scope is what a watcher sees: a cluster, and the pools that may pair with it
// (all of the cluster's when Pools is empty).
type Scope struct {
	Cluster string
	Pools   []string
}

// Registry is where records are. Safe for concurrent use.
type Registry interface {
	// Register creates the record, only if absent. A record of the same rank is
	// replaced when its process is on this host and dead, and awaited while ctx
	// lasts when it is not: then ErrTaken.
	Register(ctx context.Context, r Record) (Registration, error)
	// Watch yields the current snapshot, then one per change, newest wins: a slow
	// reader misses states, never the last. A non-nil error is the last item: the
	// view is stale, call Watch again.
	Watch(ctx context.Context, s Scope) iter.Seq2[Snapshot, error]
	Close() error
}

// Registration keeps one record alive.
type Registration interface {
	// Update replaces the record under the same name and incarnation; ErrLost when
	// the registration is gone.
	Update(ctx context.Context, r Record) error
	// Lost is closed when the record is gone or another incarnation's: the holder
	// stops intake, keeps what is in flight, and registers anew or exits (ErrTaken).
	Lost() <-chan struct{}
	Close(ctx context.Context) error
}
