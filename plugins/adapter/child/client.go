package child

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/batonkv/baton/plugins/adapter"
	adapterv1 "github.com/batonkv/baton/proto/adapter/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
)

// client is the sidecar's side: an adapter in another process.
type client struct {
	c     adapterv1.AdapterClient
	asks  bool            // Register said so,
	reads bool            // and this
	over  context.Context // of the life

	counts atomic.Pointer[map[string]float64] // of the newest answer; nil: none came

	mu     sync.Mutex // guards:
	work   *answers   // of Ask; nil before
	feed   sync.WaitGroup
	closed bool
}

// failed reads an error of a call. What the adapter did not say itself is its process's
// end, or that of ctx.
func failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	said, cerr := errs.FromStatus(err), errs.Ended(ctx, err)
	switch {
	case errs.Spoken(said):
		return said
	case cerr != nil:
		return fmt.Errorf("%w: %w", cerr, said)
	case status.Code(err) == codes.Unimplemented:
		return fmt.Errorf("%w: the adapter is of a release without this call: %w", handoff.ErrVersion, said)
	case status.Code(err) == codes.Unavailable, errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: %w", handoff.ErrHost, said)
	}
	return said
}

func (c *client) Register(ctx context.Context) (adapter.Info, error) {
	p, err := c.c.Register(ctx, &adapterv1.RegisterRequest{})
	if err != nil {
		return adapter.Info{}, failed(ctx, err)
	}
	c.asks, c.reads = p.GetAsks(), p.GetBlocks()
	return decodeInfo(p)
}

func (c *client) Configure(ctx context.Context, section []byte) error {
	_, err := c.c.Configure(ctx, &adapterv1.ConfigureRequest{Section: section})
	return failed(ctx, err)
}

// Ask opens the stream on which the adapter asks, if it does.
func (c *client) Ask(calls adapter.Calls) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asks && !c.closed {
		c.work = answer(c.over, c.c, calls)
	}
}

// ReadBlocks opens the stream on which the adapter reads, if it does.
func (c *client) ReadBlocks(feed adapter.BlockFeed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reads && !c.closed {
		c.feed.Go(func() { tell(c.over, c.c, feed) })
	}
}

// close waits for what the adapter asked and read. The life is over.
func (c *client) close() {
	c.mu.Lock()
	work := c.work
	c.closed = true
	c.mu.Unlock()
	if work != nil {
		work.wait()
	}
	c.feed.Wait()
}

func (c *client) Sync(ctx context.Context, s adapter.State) error {
	p, err := encodeState(s)
	if err != nil {
		return err
	}
	r, err := c.c.Sync(ctx, &adapterv1.SyncRequest{State: p})
	return c.counted(ctx, r.GetCounts(), err)
}

func (c *client) Notify(ctx context.Context, u adapter.Update) error {
	p, err := encodeUpdate(u)
	if err != nil {
		return err
	}
	r, err := c.c.Notify(ctx, p)
	return c.counted(ctx, r.GetCounts(), err)
}

// counted keeps what the adapter counts, of an answer.
func (c *client) counted(ctx context.Context, counts map[string]float64, err error) error {
	if err != nil {
		return failed(ctx, err)
	}
	if err := adapter.CheckCounts(counts); err != nil {
		return err
	}
	c.counts.Store(&counts)
	return nil
}

// Counts implements adapter.Counter: what came with the newest answer.
func (c *client) Counts() map[string]float64 {
	if p := c.counts.Load(); p != nil {
		return *p
	}
	return nil
}

func (c *client) Drain(ctx context.Context) error {
	_, err := c.c.Drain(ctx, &adapterv1.DrainRequest{})
	return failed(ctx, err)
}
