package direct

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/sums"
)

// adder is a Copier that also adds up what lies in buffers of the host.
type adder interface {
	Sum(ctx context.Context, j *sums.Job, in transfer.Buffers) ([]uint64, error)
}

// Sum implements transfer.Summer, on the caller's goroutine.
func (b *Backend) Sum(ctx context.Context, j *sums.Job) ([]uint64, error) {
	a, ok := b.copier.(adder)
	if !ok {
		return nil, b.fail("sum", "", fmt.Errorf("%w: its copier adds up nothing", transfer.ErrMemory))
	}
	in, let, err := b.borrow(j)
	if err != nil {
		return nil, b.fail("sum", "", err)
	}
	out, err := b.add(ctx, a, j, in)
	if errors.Is(err, transfer.ErrLost) { // what it read stays in use
		b.lost(err)
		return nil, b.fail("sum", "", err)
	}
	let()
	if err != nil {
		return nil, b.fail("sum", "", err)
	}
	return out, nil
}

// add adds up what is the host's where it lies, and what is a GPU's in the bounce buffer.
func (b *Backend) add(ctx context.Context, a adder, j *sums.Job, in transfer.Buffers) (out []uint64, err error) {
	if !slices.ContainsFunc(j.Places, func(p sums.Place) bool { return isGPU(in, p.View.Buffer) }) {
		return a.Sum(ctx, j, in)
	}
	if _, _, err := plain.ResolveSums(nil, j, in); err != nil {
		return nil, err
	}
	halves, give, err := b.take(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { give(err) }()
	for i := range j.Places {
		p := &j.Places[i]
		var made []uint64
		if isGPU(in, p.View.Buffer) {
			g := gather{b: b, a: a, j: j, p: p, in: in, to: transfer.Mapped{Addr: halves[0].Addr, Len: 2 * b.bounce.half}}
			made, err = g.sum(ctx)
		} else {
			own := *j
			own.Places = []sums.Place{*p}
			made, err = a.Sum(ctx, &own, in)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, made...)
	}
	return out, nil
}

// borrow keeps the regions that j names mapped until let is called.
func (b *Backend) borrow(j *sums.Job) (in transfer.Buffers, let func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, nil, transfer.ErrClosed
	}
	var used []*region
	for i := range j.Places {
		if r := b.regions[transfer.RegionID(j.Places[i].View.Buffer)]; r != nil { // the copier refuses what is not registered
			r.refs++
			used = append(used, r)
		}
	}
	b.open++
	return b.bufs, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, r := range used {
			r.refs--
		}
		b.open--
		if b.open == 0 {
			b.idle.Broadcast()
		}
	}, nil
}

var _ transfer.Summer = (*Backend)(nil)
