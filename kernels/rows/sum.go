package rows

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/sums"
)

// Sum adds up what j names in the buffers of a rank, on the goroutines that a Copy may
// have. When ctx ends it stops at the next layer with ErrCanceled.
func (c *Copier) Sum(ctx context.Context, j *sums.Job, in transfer.Buffers) ([]uint64, error) {
	ops, n, err := plain.ResolveSums(nil, j, in)
	if err != nil {
		return nil, err
	}
	for i := range j.Places {
		if id := j.Places[i].View.Buffer; in[id].GPU {
			return nil, fmt.Errorf("%w: buffer %d is on a GPU: bring it to host memory first", transfer.ErrMemory, id)
		}
	}
	out := make([]uint64, n)
	var next atomic.Int64 // op
	work := func() {
		for ctx.Err() == nil {
			i := next.Add(1) - 1
			if i >= int64(len(ops)) {
				return
			}
			sum(c.isa, ops[i:i+1], j.Blocks, out) // no two ops share a sum
		}
	}
	var wg sync.WaitGroup
	for range len(ops) - 1 { // a lone op needs no helper
		select {
		case c.helpers <- struct{}{}:
			wg.Go(func() { work(); <-c.helpers })
			continue
		default:
		}
		break
	}
	work()
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%w: while it was summed: %w", transfer.ErrCanceled, err)
	}
	return out, nil
}
