package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
)

// effect is what a call that broke leaves open.
type effect bool

const (
	nothing effect = false // it only asks
	inDoubt effect = true  // it may have been done
)

// ask calls the plugin. Without a deadline in ctx the call has the host's.
func ask[A any](ctx context.Context, h *Host, e effect, f func(context.Context, grpc.ClientConnInterface) (A, error)) (A, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.cfg.Call)
		defer cancel()
	}
	return askUnbounded(ctx, h, e, f)
}

func askUnbounded[A any](ctx context.Context, h *Host, e effect, f func(context.Context, grpc.ClientConnInterface) (A, error)) (A, error) {
	var none A
	p, err := h.live(ctx)
	if err != nil {
		return none, err
	}
	got, err := f(ctx, p.conn)
	if err != nil {
		return none, p.failed(ctx, err, e)
	}
	return got, nil
}

// failed is what an error of a call means to its caller.
func (p *process) failed(ctx context.Context, err error, e effect) error {
	said := errs.FromStatus(err)
	cerr := errs.Ended(ctx, err)
	switch {
	case errs.Spoken(said):
		if cerr != nil && !errors.Is(said, cerr) {
			return fmt.Errorf("%w: %w", cerr, said)
		}
		return said
	case status.Code(err) == codes.ResourceExhausted:
		return fmt.Errorf("%w: %w", handoff.ErrBound, said)
	case status.Code(err) == codes.Unimplemented:
		return fmt.Errorf("%w: the plugin is of a release without this call: %w", handoff.ErrVersion, said)
	case cerr != nil:
		said = fmt.Errorf("%w: %w", cerr, said)
	default:
		p.broke()
		said = fmt.Errorf("%w: %w", handoff.ErrHost, said)
	}
	if e == inDoubt {
		return fmt.Errorf("%w: %w", handoff.ErrInDoubt, said)
	}
	return said
}

// patience is how long a watch goes on without a plugin that can be started.
const patience = time.Minute

// follow yields what a stream of the plugin says, decoded, and opens it again with the next
// plugin, until ctx ends or the plugin itself says an error.
func follow[P, V any](ctx context.Context, h *Host, open func(context.Context, grpc.ClientConnInterface) (grpc.ServerStreamingClient[P], error), read func(*P) (V, error)) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		var none V
		last := time.Now() // when a plugin last ran
		for {
			p, err := h.live(ctx)
			switch {
			case err == nil:
			case ctx.Err() != nil, errors.Is(err, errClosed), errors.Is(err, handoff.ErrVersion), time.Since(last) > patience:
				yield(none, err)
				return
			default:
				continue // live waits before it tries again
			}
			over, err := one(ctx, p, open, read, yield)
			if over {
				return
			}
			if err != nil && (errs.Spoken(err) || !errors.Is(err, handoff.ErrHost)) || ctx.Err() != nil {
				yield(none, err)
				return
			}
			last = time.Now()
		}
	}
}

// one follows the stream of one plugin. over: the reader has enough.
func one[P, V any](ctx context.Context, p *process, open func(context.Context, grpc.ClientConnInterface) (grpc.ServerStreamingClient[P], error),
	read func(*P) (V, error), yield func(V, error) bool) (over bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx, p.conn)
	for err == nil {
		var m *P
		if m, err = stream.Recv(); err != nil {
			break
		}
		v, rerr := read(m)
		if rerr != nil {
			return false, rerr
		}
		if !yield(v, nil) {
			return true, nil
		}
	}
	if err == io.EOF { // no service ends a watch by itself: its process does
		p.broke()
		return false, fmt.Errorf("%w: the watch ended", handoff.ErrHost)
	}
	return false, p.failed(ctx, err, nothing)
}
