// Package transfer is the contract between a sidecar and whatever moves bytes.
//
// Bytes flow to the rank that pulls: Link.Pull is the only verb of a backend, and
// the ticket it returns is the only proof that memory is quiet. Implementations
// live below this package, are checked by one suite (transfertest), and are named
// by cmd alone.
package transfer

import (
	"context"
	"errors"

	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/sums"
)

// Sentinels, one per decision that a caller makes. errors.Is finds them through
// OpError and across the mover's socket pair.
var (
	ErrClosed   = errors.New("transfer: closed")
	ErrBounds   = errors.New("transfer: outside its memory")
	ErrMemory   = errors.New("transfer: memory cannot be used") // unsealed, truncated, too small, cannot be mapped
	ErrPeer     = errors.New("transfer: peer failed")           // what was read may be bad
	ErrMover    = errors.New("transfer: mover died")            // its exit was seen: memory is quiet
	ErrCanceled = errors.New("transfer: canceled")              // Cancel took effect before the last byte
	ErrBusy     = errors.New("transfer: in use by an open ticket")
	ErrConvert  = errors.New("transfer: no copier for this conversion")
	ErrFull     = errors.New("transfer: too many open tickets")
	// ErrLost is a Copier's word that copies may still be under way and nothing in this process
	// will tell their end: the process has to exit, and its exit is the proof.
	ErrLost = errors.New("transfer: copies cannot be followed any more")
)

// OpError says which backend and step failed. It wraps the cause.
type OpError struct {
	Backend string // "direct", "mover"
	Op      string // "register", "open", "pull"
	Peer    PeerID // empty if local
	Err     error
}

func (e *OpError) Error() string {
	s := e.Backend + " " + e.Op
	if e.Peer != "" {
		s += " " + string(e.Peer)
	}
	return s + ": " + e.Err.Error()
}

func (e *OpError) Unwrap() error { return e.Err }

// PeerID names one sidecar process: "<group>/<rank>@<incarnation>".
type PeerID string

// RegionID is the index of a buffer among those that a rank attached; nests and
// views use the same number.
type RegionID uint32

// Kind says how another process reaches a Memory.
type Kind uint8

const (
	// Memfd is a file descriptor that is sealed against shrinking.
	Memfd Kind = iota + 1
	// Local is memory of this process, for unit tests and in-process movers: Addr is used.
	Local
	// CUDA is GPU memory in an allocation that another process exported by a legacy IPC
	// handle: GPU.Handle names the allocation, Off and Len the part.
	CUDA
	// CUDAFD is GPU memory in physical allocations, one behind the other, with a descriptor
	// each: GPU.Chunks. Off and Len are within them all.
	CUDAFD
)

// GPU says which memory of which GPU a Memory is.
type GPU struct {
	UUID   [16]byte // of the GPU
	Handle [64]byte // CUDA
	Chunks []Chunk  // CUDAFD
}

// Chunk is one physical allocation of Len bytes.
type Chunk struct {
	FD  int
	Len int64
}

// Memory is what an engine hands over. The callee of Register and Open owns its
// descriptors from then on, also when it fails.
type Memory struct {
	Kind Kind
	FD   int    // Memfd
	Addr uint64 // Local
	Off  int64  // first byte of the buffer within the file or the allocations
	Len  int64
	GPU  *GPU // CUDA, CUDAFD; not changed by whoever holds the Memory
}

// FDs are the descriptors of m.
func (m Memory) FDs() []int {
	switch {
	case m.Kind == Memfd && m.FD >= 0:
		return []int{m.FD}
	case m.Kind == CUDAFD && m.GPU != nil:
		var fds []int
		for _, c := range m.GPU.Chunks {
			if c.FD >= 0 {
				fds = append(fds, c.FD)
			}
		}
		return fds
	}
	return nil
}

// WithFDs is m with other descriptors in the order of FDs.
func (m Memory) WithFDs(fds []int) Memory {
	switch {
	case m.Kind == Memfd && len(fds) == 1:
		m.FD = fds[0]
	case m.Kind == CUDAFD && m.GPU != nil:
		g := *m.GPU
		g.Chunks = make([]Chunk, len(m.GPU.Chunks))
		for i, c := range m.GPU.Chunks {
			g.Chunks[i] = Chunk{FD: fds[i], Len: c.Len}
		}
		m.GPU = &g
	}
	return m
}

// Backend moves bytes for one local rank. Safe for concurrent use.
type Backend interface {
	Name() string
	// Register makes a buffer of the local rank reachable under id: the destination
	// of later pulls. It fails with ErrMemory when the memory does not hold what it says.
	Register(ctx context.Context, id RegionID, m Memory) (Region, error)
	// Open prepares pulls from a peer. It takes the peer's buffers in p.
	Open(ctx context.Context, p Peer) (Link, error)
	// Close stops intake, waits for every ticket and releases everything.
	Close(ctx context.Context) error
}

// Region is registered memory.
type Region interface {
	ID() RegionID
	Close() error // ErrBusy while a ticket uses it
}

// Peer is the rank that bytes come from.
type Peer struct {
	ID      PeerID
	Regions map[RegionID]Memory
}

// Link is one direction of one pair of ranks: bytes flow towards the caller of Pull.
type Link interface {
	// Pull submits one job. ctx bounds the submission alone; ending it later stops
	// nothing. The template and the job's slices are not kept after Pull returns,
	// so the caller may reuse them.
	Pull(ctx context.Context, t *lower.Template, j lower.Job) (Ticket, error)
	// Close unmaps the peer. ErrBusy while a ticket is open.
	Close() error
}

// Ticket is one submitted pull. Done closes when the backend has settled the
// copy, or when the exit of every mover that held it was seen: nothing else
// proves the memory quiet.
type Ticket interface {
	Done() <-chan struct{}
	Err() error   // nil, or why the bytes are bad; valid once Done is closed
	Bytes() int64 // bytes written; valid once Done is closed
	Cancel()      // asks to stop; Done still closes only when nothing can touch the memory
}

// Summer is the ability of a Backend to add up what its regions hold. It reads: a region
// that is summed is in use, and Close of it is ErrBusy. It waits for its answer; when ctx
// ends first, the sums that were begun go on to their end.
type Summer interface {
	Sum(ctx context.Context, j *sums.Job) ([]uint64, error)
}

// Copier executes nests between memory that its process can reach, and alone
// converts dtypes. Buffers resolve a nest's Src and Dst.
type Copier interface {
	// Fits is asked once per template: ErrConvert when the copier lacks a conversion.
	Fits(n lower.Nest) error
	// Copy runs the nests and returns the bytes written. Every byte it touches lies
	// in src or dst, else ErrBounds before the first byte. Safe for concurrent use.
	Copy(ctx context.Context, ns []lower.Nest, src, dst Buffers) (int64, error)
}

// Buffers are the mapped buffers of one rank, indexed by RegionID. A zero
// Mapped is a buffer that this process does not hold.
type Buffers []Mapped

// Mapped is memory of this process. Addr is a number, never a Go pointer.
type Mapped struct {
	Addr uint64
	Len  int64
	GPU  bool // only a copier of the GPU may touch it
}
