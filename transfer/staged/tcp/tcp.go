// Package tcp is the staged.Wire over TCP: chunks travel on a few connections for each
// peer, TLS 1.3 unless the owners of both ends say plain. Who fetches dials.
//
// A fetch ends when its bytes are in the chunk, or when nothing reads into it any more: a
// connection belongs to one goroutine that reads, and what that has begun it ends.
package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/internal/door"
	"github.com/batonkv/baton/transfer/staged/internal/offers"
)

var (
	// ErrConfig reports a setting that cannot be used.
	ErrConfig = errors.New("tcp: bad config")
	// ErrFrame reports bytes that are not of this protocol.
	ErrFrame = errors.New("tcp: bad frame")
)

// Config of a Wire.
type Config struct {
	Wire   staged.Incarnation // this wire mover
	Arena  []byte             // the staging memory, for as long as the Wire lives
	Chunk  int64              // bytes of a chunk
	Listen string             // host:port; port 0: any
	// Server and Client are the TLS of both directions; nil, both: plain TCP, where
	// anybody who reaches the port may fetch what is offered. The other end has to be
	// plain as well.
	Server, Client *tls.Config
	Conns          int // for each peer, at most MaxConns; 0: 2 to 4, by the processors of this machine
}

// MaxConns bounds Config.Conns.
const MaxConns = 64

// Wire implements staged.Wire.
type Wire struct {
	*offers.Book
	cfg  Config
	door *door.Door
	ctx  context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	peers   map[string]*peer
	stopped bool
}

var _ staged.Wire = (*Wire)(nil)

// New listens and serves. Close ends it.
func New(cfg Config) (*Wire, error) {
	if cfg.Conns == 0 {
		cfg.Conns = max(2, min(runtime.NumCPU()/2, 4)) // more than cores only take turns
	}
	if cfg.Chunk < 1 || int64(len(cfg.Arena)) < cfg.Chunk || cfg.Conns < 1 || cfg.Conns > MaxConns || (cfg.Server == nil) != (cfg.Client == nil) {
		return nil, fmt.Errorf("%w: chunks of %d in an arena of %d bytes, %d connections: want TLS for both directions or none, 1 to %d connections",
			ErrConfig, cfg.Chunk, len(cfg.Arena), cfg.Conns, MaxConns)
	}
	w := &Wire{cfg: cfg, Book: offers.New(cfg.Arena, cfg.Chunk), peers: map[string]*peer{}}
	var err error
	if w.door, err = door.Open(cfg.Listen, maxConns, func(ctx context.Context, c net.Conn) {
		_ = w.serve(ctx, c) // who fetches sees why, or the end of the connection
	}); err != nil {
		return nil, fmt.Errorf("%w: listen: %w", ErrConfig, err)
	}
	w.ctx, w.end = context.WithCancel(context.Background())
	return w, nil
}

// Addr implements staged.Wire.
func (w *Wire) Addr() string { return w.door.Addr() }

// pause waits before something that failed is tried again.
func (w *Wire) pause() {
	t := time.NewTimer(20 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.ctx.Done():
	}
}

// Close implements staged.Wire.
func (w *Wire) Close() error {
	w.mu.Lock()
	if w.stopped {
		w.mu.Unlock()
		w.work.Wait()
		return nil
	}
	w.stopped = true
	peers := w.peers
	w.peers = nil
	w.mu.Unlock()
	w.end()
	err := w.door.Close()
	for _, p := range peers {
		p.close()
	}
	w.work.Wait()
	return err
}
