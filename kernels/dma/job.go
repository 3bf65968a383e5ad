//go:build cgo

package dma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/transfer"
)

const (
	// windowBytes is how much a Copy between GPUs starts at once. Two windows are under way, so that the
	// next one is built while one is copied, and a Cancel waits for milliseconds at most.
	windowBytes = 512 << 20
	// windowOps bounds the copies of a window, which are built in one call into C.
	windowOps = 1024
)

// run copies w.ops: on one goroutine that builds a window while another is copied, or, when
// there is nothing but many flat copies, whose building takes longer than the copying, on two.
func (c *Copier) run(ctx context.Context, l lanes, w *work) (int64, error) {
	j := &job{ctx: ctx, c: c, ops: w.ops}
	if c.batch && c.cfg.BatchFrom > 0 && len(w.ops) >= 2*windowOps && allFlat(w.ops) {
		var wg sync.WaitGroup
		wg.Go(func() { j.work(l[2:], &c.order) })
		j.work(l[:2], &c.order)
		wg.Wait()
	} else {
		j.work(l[:2], &c.order)
	}
	switch {
	case j.err != nil:
		return 0, j.err // what a refused window wrote is not known
	case len(j.ops) > 0:
		return j.done, canceled(ctx, j.done)
	}
	return j.done, nil
}

// job is one Copy under way.
type job struct {
	ctx context.Context
	c   *Copier

	mu   sync.Mutex
	ops  []cuda.Op // under mu: not taken yet
	done int64     // under mu: bytes that were seen to be copied
	err  error     // under mu: the first failure
}

// take is the next window and what it weighs, none after a failure or the end of ctx.
func (j *job) take() (ops []cuda.Op, w weight) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil || j.ctx.Err() != nil {
		return nil, w
	}
	n, w := window(j.ops)
	ops, j.ops = j.ops[:n], j.ops[n:]
	return ops, w
}

func (j *job) settle(bytes int64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		j.done += bytes
	} else if j.err == nil {
		j.err = err
	}
}

// work runs windows on lanes in turn, and waits for all that it began.
func (j *job) work(lanes []*cuda.Lane, scratch *sync.Pool) {
	buf := scratch.Get().(*[]cuda.Op)
	defer scratch.Put(buf)
	var open [2]weight // under way on each lane
	wait := func(i int) {
		if open[i].bytes == 0 {
			return
		}
		err := lanes[i].Wait(Expect(open[i].time))
		if err != nil {
			err = fmt.Errorf("%w: %w", transfer.ErrLost, err)
		}
		j.settle(open[i].bytes, err)
		open[i] = weight{}
	}
	i := 0
	for {
		wait(i)
		ops, w := j.take()
		if len(ops) == 0 {
			break
		}
		p := j.c.arrange(buf, ops)
		if err := lanes[i].Submit(&p); err != nil {
			j.settle(0, failed(err))
		}
		open[i] = w
		i = (i + 1) % len(lanes)
	}
	for range lanes {
		i = (i + 1) % len(lanes)
		wait(i)
	}
}

func allFlat(ops []cuda.Op) bool {
	return !slices.ContainsFunc(ops, func(o cuda.Op) bool { return !o.Flat() })
}

// failed is why a window was not submitted.
func failed(err error) error {
	if errors.Is(err, cuda.ErrLost) {
		return fmt.Errorf("%w: %w", transfer.ErrLost, err)
	}
	return fmt.Errorf("%w: %w", transfer.ErrMemory, err)
}

// Expect is about how long a copy of n bytes between two GPUs takes at best.
func Expect(n int64) time.Duration { return time.Duration(n / bytesPerNano) }

// bytesPerNano is a little more than the fastest links of today carry, so that a wait looks
// too early rather than too late.
const bytesPerNano = 420

// weight is what a window is: the bytes that it writes, and the bytes that two GPUs copy in
// the time that it takes.
type weight struct{ bytes, time int64 }

// hostTime is how much longer a byte takes to or from host memory than between two GPUs.
const hostTime = 8

func weigh(o *cuda.Op) weight {
	w := weight{o.Bytes(), o.Bytes()}
	if o.Kind == cuda.FromHost || o.Kind == cuda.ToHost {
		w.time *= hostTime
	}
	return w
}

// window is how many of ops are started at once, and what they weigh.
func window(ops []cuda.Op) (n int, all weight) {
	for n < len(ops) && n < windowOps {
		w := weigh(&ops[n])
		if n > 0 && all.time+w.time > windowBytes {
			break
		}
		all.bytes, all.time = all.bytes+w.bytes, all.time+w.time
		n++
	}
	return n, all
}
