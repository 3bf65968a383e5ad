// Package nixl is the staged.Wire over NIXL: who fetches reads the peer's chunks one-sided,
// by its agent. The library is opened at run time by its C interface; nothing of it is
// needed to build.
//
// Only READ is used. The reader says when a fetch is over, so a reading wire needs no word
// from the source in between, and a write that comes late, the one thing that no rule could
// catch, does not exist: nothing but its own fetches ever writes into an arena.
//
// A side connection to the peer's Wire, TLS unless the owner says plain, carries what the
// bytes cannot: the peer's metadata once, and the answer to "is this offer open, and which
// chunk is it" twice for each fetch:
//
//	ask -> chunk -> READ -> ask again -> the same chunk: the bytes are those of the offer
//
// The second answer is what makes a one-sided read safe. Offers never repeat and the process
// that answers is the one that was asked, so an offer that is open after the read had ended was
// open all along, and its chunk was not packed anew meanwhile. That holds for a read that
// the kernel goes on with after the source has exited, too: then nobody answers.
//
// NIXL cannot cancel. A fetch that is cancelled before or after its read ends at once; while
// it is read it ends with the read. When a read has failed, or its peer is gone, the fetch
// ends once the agent has: that is the only barrier which the library has, and for it each
// peer has an agent of its own. A read that does not end keeps its fetch open until the wire
// mover is killed.
//
// Notifications are not used: they come unordered and only while the other end polls, and the
// second answer says more.
package nixl

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"unsafe"

	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/internal/door"
	"github.com/batonkv/baton/transfer/staged/internal/offers"
)

var (
	// ErrConfig reports a setting that cannot be used.
	ErrConfig = errors.New("nixl: bad config")
	// ErrLibrary reports that the library cannot be had: not found, or not loaded.
	ErrLibrary = errors.New("nixl: no library")
	// ErrOld reports a library that lacks functions; they are named.
	ErrOld = errors.New("nixl: the library is too old")
	// ErrStub reports the stand-in that is built where there is no NIXL.
	ErrStub = errors.New("nixl: the library is a stub")
	// ErrBackend reports a backend that cannot be had here.
	ErrBackend = errors.New("nixl: no such backend")
	// ErrCall reports a call of the library that failed.
	ErrCall = errors.New("nixl: the library failed")
	// ErrMetadata reports a peer's metadata that are of no use.
	ErrMetadata = errors.New("nixl: bad metadata")
	// ErrFrame reports bytes that are not of the side connection's protocol.
	ErrFrame = errors.New("nixl: bad frame")
)

// DefaultBackend is the plugin of NIXL that is used when none is named.
const DefaultBackend = "UCX"

// Config of a Wire.
type Config struct {
	Wire    staged.Incarnation // this wire mover
	Arena   []byte             // the staging memory, outside Go's heap, for as long as the Wire lives
	Chunk   int64              // bytes of a chunk
	Listen  string             // host:port of the side connections; port 0: any
	Options Options            // as Found gave them
	// Server and Client are the TLS of the side connections; nil, both: plain TCP.
	Server, Client *tls.Config
}

// Wire implements staged.Wire.
type Wire struct {
	*offers.Book
	cfg  Config
	lib  *library
	own  *agent // that peers read from
	md   []byte // of own
	door *door.Door
	ctx  context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	peers   map[peerKey]*peer
	agents  uint64 // made for peers
	stopped bool
}

var _ staged.Wire = (*Wire)(nil)

// New opens the library, makes the agent that peers read from, and serves. Close ends it.
func New(cfg Config) (*Wire, error) {
	if err := cfg.Options.Check(); err != nil {
		return nil, err
	}
	if cfg.Chunk < 1 || int64(len(cfg.Arena)) < cfg.Chunk || int64(len(cfg.Arena))/cfg.Chunk > maxChunks || (cfg.Server == nil) != (cfg.Client == nil) {
		return nil, fmt.Errorf("%w: chunks of %d in an arena of %d bytes: want 1 to %d chunks, and TLS for both directions or none",
			ErrConfig, cfg.Chunk, len(cfg.Arena), maxChunks)
	}
	lib, err := load(cfg.Options.Library)
	if err != nil {
		return nil, err
	}
	w := &Wire{cfg: cfg, lib: lib, Book: offers.New(cfg.Arena, cfg.Chunk), peers: map[peerKey]*peer{}}
	if w.own, err = lib.agent(agentName(cfg.Wire), cfg, true); err != nil {
		return nil, err
	}
	if w.md, err = w.own.metadata(); err == nil && len(w.md) > maxMetadata {
		err = fmt.Errorf("%w: %d bytes of its own, at most %d: name fewer devices in the backend's params", ErrMetadata, len(w.md), maxMetadata)
	}
	if err != nil {
		w.own.end(nil)
		return nil, err
	}
	w.ctx, w.end = context.WithCancel(context.Background())
	if w.door, err = door.Open(cfg.Listen, maxConns, func(ctx context.Context, c net.Conn) {
		_ = w.serve(ctx, c) // who dialled sees the end of the connection
	}); err != nil {
		w.end()
		w.own.end(nil)
		return nil, fmt.Errorf("%w: listen: %w", ErrConfig, err)
	}
	return w, nil
}

// agentName is that of a wire mover's agent: a successor has another one.
func agentName(id staged.Incarnation) string { return fmt.Sprintf("baton-%016x", uint64(id)) }

// Addr implements staged.Wire.
func (w *Wire) Addr() string { return w.door.Addr() }

func (w *Wire) chunks() int32 { return int32(int64(len(w.cfg.Arena)) / w.cfg.Chunk) }

// reach is what it takes to read the own arena.
func (w *Wire) reach() welcome {
	return welcome{base: base(w.cfg.Arena), chunk: w.cfg.Chunk, chunks: w.chunks(), metadata: w.md}
}

// base is an arena's address in this process.
func base(arena []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(arena)))) }

// Close implements staged.Wire. The reads of peers fail from then on.
func (w *Wire) Close() error {
	w.mu.Lock()
	if w.stopped {
		w.mu.Unlock()
		w.work.Wait()
		return nil
	}
	w.stopped = true
	w.mu.Unlock()
	w.end()
	err := w.door.Close()
	w.work.Wait()
	w.own.end(nil)
	return err
}
