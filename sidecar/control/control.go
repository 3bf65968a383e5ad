// Package control is what a sidecar offers to control planes: ordinary calls and one
// stream of notices, on the port of the peer service.
//
// It carries; the Service decides. Who may call is asked of the certificate before
// anything else. Notices are kept in a Log of fixed size: a slow watcher misses some
// and is told so, and slows nobody.
package control

import (
	"context"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
)

// Service is what stands behind the calls. Safe for concurrent use. Errors keep their
// sentinels on the way to the caller.
type Service interface {
	// Import returns when the hand-off was admitted, or with the reason why not. ctx
	// ends when the caller is gone; the import goes on.
	Import(ctx context.Context, m handoff.Import) (handoff.Imported, error)
	// Get tells what is known of a hand-off; ErrUnknown if nothing.
	Get(ctx context.Context, id handoff.ID) (Info, error)
	// Abort asks to end an import: that of key, or any of id when key is zero.
	Abort(ctx context.Context, id handoff.ID, key handoff.Key) error
	// Release gives up a manifest that nobody will import.
	Release(ctx context.Context, id handoff.ID, key handoff.Key) error
	// SetWeightsEpoch returns when every engine of the group applied the change.
	SetWeightsEpoch(ctx context.Context, epoch uint64) error
	// Reset gives up every hand-off of the group; ErrQuiet while a copy may touch its memory.
	Reset(ctx context.Context) error
	Status(ctx context.Context) (Status, error)
	// List tells what is known of hand-offs, a page at a time: sources before destinations,
	// each by age.
	List(ctx context.Context, q Query) (Page, error)
	// Geometry is the group's, by its leader; ErrNotReady while a rank is missing.
	Geometry(ctx context.Context) (Geometry, error)
	// Do passes an action to every engine of the group, by its leader. It returns when all
	// acknowledged it, or with the first refusal. ErrInDoubt: some did not answer.
	Do(ctx context.Context, a handoff.Action) error
	// Drain stops the group's intake by its leader, or resumes it, and tells what is left: it
	// answers at once, and is asked again until Drain.Safe.
	Drain(ctx context.Context, resume bool) (Drain, error)
	// Links tells how this rank reads from ranks of other groups.
	Links(ctx context.Context, q LinksQuery) (Links, error)
	// Watch yields notices from a cursor on until ctx ends. A non-nil error is the last
	// item. Log.Watch is an implementation.
	Watch(ctx context.Context, from Cursor) iter.Seq2[Notice, error]
}

// Role says which side of a hand-off a sidecar is.
type Role uint8

const (
	Source Role = iota + 1
	Destination
)

// Phase is how far a hand-off is.
type Phase uint8

const (
	Held     Phase = iota + 1 // source: exported, every rank pinned
	Ended                     // source: consumed, released or expired
	Opening                   // destination: waits for the source's answer
	Queued                    // destination: waits for blocks or a slot
	Pulling                   // destination: reserved, bytes are moving
	Closing                   // destination: landed, asks the source to be done
	Admitted                  // destination: the request is the engine's
	Failing                   // destination: failed, Err says why
)

var phaseNames = [...]string{Held: "held", Ended: "ended", Opening: "opening", Queued: "queued",
	Pulling: "pulling", Closing: "closing", Admitted: "admitted", Failing: "failed"}

func (p Phase) String() string {
	if int(p) < len(phaseNames) && p > 0 {
		return phaseNames[p]
	}
	return "phase(?)"
}

// Info is what a sidecar knows of one hand-off.
type Info struct {
	ID         handoff.ID
	Role       Role
	Phase      Phase
	Label      string
	Attempt    handoff.Attempt
	Copies     int32 // source: copies left
	Bytes      int64 // destination: moved so far, all ranks
	Err        error // why it failed
	SourceSafe bool  // it failed and the source is still held
}

// MemberStatus is one rank of a group as its leader, or the rank itself, sees it.
type MemberStatus struct {
	handoff.Member
	PID      int32
	Addr     string // host:port of its peer and control services
	Attached bool
}

// Status is one sidecar.
type Status struct {
	Self     handoff.Member
	Instance handoff.Instance // of the attached engine; 0 before
	Ranks    int32            // size of the group; 0 before an engine attached
	Ready    bool             // every rank is attached
	Members  []MemberStatus   // by rank
	Capacity handoff.Capacity
	MoverPID int32             // 0: none runs
	Counters map[string]uint64 // by name; they only grow
	Draining bool              // the group takes no new work
}

// Query selects hand-offs of List.
type Query struct {
	Role  Role   // 0: both
	Live  bool   // only what has not ended
	Page  string // of an earlier Page; "": from the start
	Limit int32  // at most MaxPage, which 0 stands for
}

// MaxPage bounds one Page.
const MaxPage = 1000

// Check says why q cannot be answered, or returns nil.
func (q Query) Check() error {
	switch {
	case q.Role > Destination:
		return fmt.Errorf("%w: list.role: %d: want 0 to %d", handoff.ErrBound, q.Role, Destination)
	case q.Limit < 0 || q.Limit > MaxPage:
		return over("list.limit", int(q.Limit), MaxPage)
	case len(q.Page) > codec.MaxString:
		return over("list.page", len(q.Page), codec.MaxString)
	}
	return nil
}

// Page is a part of a list. Next asks for what follows; "": nothing does.
type Page struct {
	Infos []Info
	Next  string
}

// Geometry is a whole group's model and shards.
type Geometry struct {
	handoff.Geometry
	Name         string // of the model
	WeightsEpoch uint64
}

// Drain is how far a group is on its way to a safe stop.
type Drain struct {
	Draining bool
	Safe     bool     // nothing is left that a stop would lose
	Imports  int32    // that have not ended
	Exports  int32    // that are held
	Waits    []string // what else is waited for, for people; at most MaxWaits
}

// MaxWaits bounds Drain.Waits.
const MaxWaits = 9

// LinksQuery says what to do before Links answers.
type LinksQuery struct {
	Probe bool // measure what is idle and staged
	Meet  bool // open sessions to ranks that may be read and have none
}

// How long a sidecar waits for what a LinksQuery says.
const (
	ProbeTime = 30 * time.Second
	MeetTime  = 3 * time.Second
)

// Takes is how long a sidecar may be busy with it, beside a call's own time.
func (q LinksQuery) Takes() (d time.Duration) {
	if q.Probe {
		d += ProbeTime
	}
	if q.Meet {
		d += MeetTime
	}
	return d
}

// Links is how one rank reads from ranks of other groups.
type Links struct {
	Self   handoff.Member
	Offers []choice.Offer // of Self
	Links  []handoff.Link // by peer, at most MaxLinks
	More   int32          // that were left out
}

// MaxLinks bounds Links.Links.
const MaxLinks = 4096

// Cursor is where a Watch goes on: the number after the last notice seen, and the process
// that numbered it, 0: not known. Zero: from the oldest that is kept.
type Cursor struct {
	Incarnation handoff.Incarnation
	Seq         uint64
}

// Newest is the cursor of what happens next: the first notice is then a Gap, of none lost,
// whose number says where that is.
var Newest = Cursor{Seq: math.MaxUint64}

// After is the cursor that follows n.
func (n Notice) After() Cursor { return Cursor{n.Incarnation, n.Seq + 1} }

// Kind is what a Notice tells.
type Kind uint8

const (
	Gap       Kind = iota + 1 // notices up to Seq were lost, Lost of them
	Ready                     // every rank of the group is attached
	NotReady                  // a rank was lost
	Exported                  // Label was exported; Manifest is set
	Over                      // an exported hand-off is over
	Imported                  // Label was admitted; Bytes, Cached, Phases
	Failed                    // Label's import failed; Err, SourceSafe
	Announced                 // Label will be exported; Manifest names the hand-off, and an import of it waits
	Draining                  // the group takes no new work
	Serving                   // it takes work again
	Linked                    // a rank reads from another in some way, or that is worth more or less: Link
)

var kindNames = [...]string{Gap: "gap", Ready: "ready", NotReady: "not-ready", Exported: "exported",
	Over: "over", Imported: "imported", Failed: "failed", Announced: "announced", Draining: "draining", Serving: "serving", Linked: "link"}

func (k Kind) String() string {
	if int(k) < len(kindNames) && k > 0 {
		return kindNames[k]
	}
	return "kind(?)"
}

// Notice is one thing that happened. Seq counts from 1 within a process.
type Notice struct {
	Incarnation handoff.Incarnation
	Seq         uint64
	Kind        Kind
	Label       string
	ID          handoff.ID
	Manifest    *handoff.Manifest // Announced: without what Export brings; Exported
	Bytes       int64             // moved, all ranks
	Cached      int32             // tokens found in the decode cache
	Phases      handoff.Phases
	Err         error
	SourceSafe  bool
	Link        *handoff.Link
	Lost        uint64 // Gap: how many; 0 when the caller's number is of an earlier process
}
