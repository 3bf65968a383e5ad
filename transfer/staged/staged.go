// Package staged is the staging ring of both ends of a transfer that no process can
// copy in one go: a local mover packs engine memory into a chunk of a staging arena,
// wire movers bring the chunk to the other host's arena, a local mover unpacks it
// there. Source and Dest decide; they do no I/O, keep no clock, start nothing and see
// no byte. A driver carries their effects out and feeds what happened back, a
// simulation steps the same machines.
//
// Four movers touch a chunk's bytes: local and wire of each end. The rule that all
// else serves:
//
//	A chunk is free when no ticket of either mover of either end is open on it. A
//	mover's exit ends that mover's tickets, and no others.
//
// At the source a chunk is held from Pack until its pack has ended and, if it was
// offered, until the reader's Credit says that its fetch is over, or the exit of the
// wire mover that offered it was seen: no read of what that process exposed outlives
// it. At the destination a chunk is held from Fetch until the fetch ticket has ended
// and, if it was good, until the unpack ticket has.
//
// No deadlock: a unit of work takes, in this order, a grant, a source chunk, a
// destination chunk, and each is kept only while the next one is awaited. A
// destination chunk is taken for a packed chunk, never for one that is still to
// come, and given back without waiting for anything but the two movers of its own
// end and, for the fetch, the source's. Source chunks of one job are handed out in
// order and no job waits for a chunk that another job needs to go on, so what waits
// forms no circle however small the arenas are; a wait for a mover ends by its exit.
//
// A slow peer slows only itself while slow peers times Config.PerPeer is less than
// the arena.
package staged

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/batonkv/baton/transfer"
)

// Incarnation is the random number of one mover process; 0 is none.
type Incarnation uint64

// Job is one pull of one destination rank from one source rank. It never repeats:
// attempts count within an importer, and a peer is one sidecar process.
type Job struct {
	Handoff [16]byte
	Attempt uint64
	Pair    uint32 // index of the pair of ranks in the plan
	Part    uint32 // counts the pulls of the pair
}

// Pin names the source memory of a job, as the hand-off's Opened answer did.
type Pin struct{ ID, Generation uint64 }

// Config is fixed for the life of a Source or Dest.
type Config struct {
	Chunks  int32 // of the arena
	PerPeer int32 // chunks that one peer may hold at once: its credits
	MaxJobs int32 // open jobs of one peer; one more is refused with Full
}

// windowSize is how far a job's chunks may run ahead of its oldest unsettled one.
const windowSize = 64

// maxChunks bounds an arena: its chunks are looked through at every step.
const maxChunks = 1 << 16

// Check reports why c cannot be used.
func (c Config) Check() error {
	switch {
	case c.Chunks < 1 || c.Chunks > maxChunks:
		return fmt.Errorf("%w: %d chunks, want 1 to %d", ErrConfig, c.Chunks, maxChunks)
	case c.PerPeer < 1 || c.PerPeer > min(c.Chunks, windowSize):
		return fmt.Errorf("%w: %d chunks a peer, want 1 to %d", ErrConfig, c.PerPeer, min(c.Chunks, windowSize))
	case c.MaxJobs < 1:
		return fmt.Errorf("%w: %d jobs a peer, want at least 1", ErrConfig, c.MaxJobs)
	}
	return nil
}

// Sentinels. Those of package transfer are used where they say the same.
var (
	ErrConfig  = errors.New("staged: bad config")
	ErrLease   = errors.New("staged: the source's lease is over")
	ErrFull    = errors.New("staged: too many jobs of one peer")
	ErrStamp   = errors.New("staged: chunk belongs to another job")
	ErrStopped = errors.New("staged: the reader gave up")
)

// Reason says how a ticket or a job ended. The zero value is good.
type Reason uint8

const (
	Lease    Reason = iota + 1 // the pin is no longer held
	Full                       // MaxJobs
	Peer                       // the session to the peer was lost
	Mover                      // a mover exited
	Transfer                   // a mover reported a failure
	BadStamp                   // the stamps name other bytes
	Canceled                   // by the driver
	Stopped                    // by the reader
	maxReason
)

var reasonErrs = [maxReason]error{Lease: ErrLease, Full: ErrFull, Peer: transfer.ErrPeer, Mover: transfer.ErrMover,
	Transfer: transfer.ErrPeer, BadStamp: ErrStamp, Canceled: transfer.ErrCanceled, Stopped: ErrStopped}

// Err is the sentinel of r; nil for the zero value. A reason that a peer made up
// reads as a failed peer.
func (r Reason) Err() error {
	if r >= maxReason {
		return transfer.ErrPeer
	}
	return reasonErrs[r]
}

// Use counts the chunks of an arena by who has them. The sum is Config.Chunks.
type Use struct {
	Free        int32
	Local       int32 // the local mover: packing or unpacking
	Ready       int32 // packed, waiting for a wire mover
	Wire        int32 // offered or being fetched, less quarantined
	Quarantined int32 // the job is over and patience ran out, a wire ticket is open
}

// window is the set of a job's chunk numbers that are settled: all below lo, and
// some of the windowSize from lo on.
type window struct {
	lo   int32
	bits uint64 // bit i: lo+i
}

// fits reports whether seq is not beyond what w can hold.
func (w *window) fits(seq int32) bool { return seq < w.lo || seq-w.lo < windowSize }

func (w *window) has(seq int32) bool {
	return seq < w.lo || seq-w.lo < windowSize && w.bits>>uint(seq-w.lo)&1 == 1
}

// add settles seq, which fits.
func (w *window) add(seq int32) {
	if seq < w.lo {
		return
	}
	w.bits |= 1 << uint(seq-w.lo)
	n := bits.TrailingZeros64(^w.bits)
	w.lo += int32(n)
	w.bits >>= uint(n)
}
