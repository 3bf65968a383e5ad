// Package plugins is Baton's outward face: three small interfaces through which a control
// plane moves requests (Handoff), explains a re-shard (Reshard) and steers groups
// (Cluster). plugins/host gives them to a Go program, over hashicorp/go-plugin;
// proto/plugin/v1 is the same in any language with gRPC.
//
// Nothing here keeps state. A control plane and its plugin may die at any instant: pins,
// imports and drains live in the sidecars. Errors keep their sentinels (sidecar/handoff)
// on the whole way, so errors.Is decides in the caller's process.
package plugins

import (
	"context"
	"iter"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/reshard"
)

// Handoff moves requests. Group names are unique within a cluster. Every call may fail
// with handoff.ErrGroup (no such group), ErrNotReady (its leader or a rank is missing),
// ErrPeer (its leader is not reached), ErrDenied, and ErrHost (the plugin ended). One that
// changes something is ErrInDoubt too when its answer was lost: it may have been carried
// out. Safe for concurrent use.
type Handoff interface {
	// Import brings a hand-off into group. It returns when that was admitted, or with the
	// reason why not. ErrInDoubt: it may have been admitted, Get tells. A call that
	// is repeated while the first one goes on is answered with it; after its end it finds
	// the hand-off taken (ErrTaken, ErrGone), and Get tells by whom.
	Import(ctx context.Context, group string, m handoff.Import) (handoff.Imported, error)
	// Get tells what group knows of a hand-off, as source or as destination;
	// handoff.ErrUnknown if nothing.
	Get(ctx context.Context, group string, id handoff.ID) (control.Info, error)
	// List tells what group knows of all hand-offs, a page at a time.
	List(ctx context.Context, group string, q control.Query) (control.Page, error)
	// Abort asks to end an import of group. ErrInDoubt: Get tells.
	Abort(ctx context.Context, group string, id handoff.ID) error
	// Release gives up a manifest that nobody will import; id names its group. It succeeds
	// when that is over already, and is ErrGone when nothing is known of it. ErrInDoubt: ask
	// again.
	Release(ctx context.Context, id handoff.ID, key handoff.Key) error
	// Watch yields what happens in group from a cursor on, until ctx ends. It goes on over
	// a restart of the leader, unless none is there for a minute, and yields a control.Gap
	// when anything may have been missed.
	// A non-nil error is the last item: watch again from the cursor after the last notice.
	Watch(ctx context.Context, group string, from control.Cursor) iter.Seq2[control.Notice, error]
}

// Reshard explains what moves between two groups. Safe for concurrent use.
type Reshard interface {
	// Plan fails with reshard.ErrUncovered, reshard.ErrMismatch, handoff.ErrModel or
	// layout.ErrGeometry where a hand-off would; the last is also of a layout or a model
	// that there is not.
	Plan(ctx context.Context, q PlanQuery) (Plan, error)
	// Explain renders the plan for one request of tokens.
	Explain(ctx context.Context, q PlanQuery, tokens int32, f Format) ([]byte, error)
}

// Cluster tells who is there and steers groups. Its calls fail as those of Handoff do; one
// that is ErrInDoubt may be asked for again. Safe for concurrent use.
type Cluster interface {
	// Groups is the newest view, sorted by pool and name.
	Groups(ctx context.Context) ([]Group, error)
	// Watch yields the whole view, and again at each change, newest wins, until ctx ends.
	// A non-nil error is the last item.
	Watch(ctx context.Context) iter.Seq2[[]Group, error]
	// Describe asks group's leader for its status and geometry, which is empty while the
	// group is not complete.
	Describe(ctx context.Context, group string) (Detail, error)
	// Links tells how a rank of group reads from ranks of other groups: by which transport
	// and why, how fast, and what is wrong with it. handoff.ErrNotReady: the rank is not there.
	// What q asks to be done first takes q.Takes beside a call's own time.
	Links(ctx context.Context, group string, rank layout.Rank, q control.LinksQuery) (control.Links, error)
	// Do passes an action to every engine of group. It returns when all acknowledged it, or
	// with the first refusal.
	Do(ctx context.Context, group string, a handoff.Action) error
	// SetWeightsEpoch returns when every engine of group applied it.
	SetWeightsEpoch(ctx context.Context, group string, epoch uint64) error
	// Drain stops group's intake, or resumes it, and tells what is left. It answers at once
	// and is asked again until Drain.Safe.
	Drain(ctx context.Context, group string, resume bool) (control.Drain, error)
	// Reset gives up every hand-off of group; handoff.ErrQuiet while a copy may touch its
	// memory: ask again.
	Reset(ctx context.Context, group string) error
}

// Side is one group of a plan: a live group by its name, or a layout as `baton plan` takes
// it ("tp=2,pp=2,block=16"). Exactly one is set.
type Side struct{ Group, Layout string }

// PlanQuery asks for the plan from Source to Destination. Model is one that
// `baton plan --list` shows; it is needed when no side is a live group.
type PlanQuery struct {
	Source, Destination Side
	Model               string
}

// Plan is who sends what to whom.
type Plan struct {
	Digest [32]byte // both sides of a hand-off compare it before the first byte
	Model  layout.Model
	Moves  []reshard.Move // sorted by destination and source
}

// Format is how Explain renders.
type Format uint8

const (
	Text Format = iota + 1
	JSON
	SVG
)

// Group is what discovery shows of a group.
type Group struct {
	Cluster, Pool, Name, Tenant string
	Role                        discovery.Role
	Instance                    handoff.Instance // one launch of its engine; 0 before
	Size                        int32            // ranks that it consists of; 0 before an engine attached
	Ranks                       []Rank           // that are registered, by rank
	Complete                    bool             // every rank is registered and its engine attached
	Draining                    bool
	Geometry                    string // digest, hex
	// Classes of what its engine has, free or not: rounded down to powers of two.
	CapacityBlocks, CapacitySlots int32
}

// Rank is one registered sidecar.
type Rank struct {
	handoff.Member
	Host       string // equal on one host only
	PID        int32
	Addr       string   // host:port of its peer and control services
	Transports []string // by which its memory can be reached
}

// Detail is what a group's leader says.
type Detail struct {
	Status   control.Status
	Geometry control.Geometry
}
