package direct

import (
	"context"
	"fmt"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/sums"
)

// adder is a Copier that also adds up what lies in buffers.
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
	out, err := a.Sum(ctx, j, in)
	let()
	if err != nil {
		return nil, b.fail("sum", "", err)
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
