// Package rows copies strided rows between host memories at the speed of a flat
// memcpy: a transfer.Copier in C with run-time CPU dispatch, non-temporal stores for
// copies that do not fit the cache, and work split over a bounded number of
// goroutines. It converts between bf16, fp16 and fp32 on the way, each element rounded
// once. Without cgo the Go reference (package plain) does the same, slower.
//
// It does not map memory or keep goroutines: those that a Copy starts have ended when
// it returns.
package rows

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

const (
	// streamFrom is the size in bytes from which a job bypasses the cache. Below it,
	// what was copied is still in the second-level cache when the reader comes.
	streamFrom = 1 << 20
	// pieceBytes is what one worker takes at a time: large against the cost of a
	// call into C, small against a job, so that workers end together and Cancel is
	// prompt.
	pieceBytes = 4 << 20
	// splitFrom is the job size in bytes from which a second goroutine pays.
	splitFrom = 512 << 10
)

// Config of a Copier. The zero value is good.
type Config struct {
	// Workers bounds the goroutines that copy, beyond the callers of Copy
	// themselves: n callers and Workers-1 helpers at most. 0: GOMAXPROCS.
	Workers int
}

// Check reports a Config that New refuses.
func (c Config) Check() error {
	if c.Workers < 0 || c.Workers > 1024 {
		return fmt.Errorf("rows: workers: %d: want 0 (one per CPU) to 1024", c.Workers)
	}
	return nil
}

// Copier implements transfer.Copier. Safe for concurrent use.
type Copier struct {
	isa     isa
	helpers chan struct{} // one token per goroutine that may run beside the callers
	scratch sync.Pool     // *scratch
}

type scratch struct{ ops, pieces []plain.Op }

// New makes a Copier for this CPU.
func New(cfg Config) (*Copier, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	w := cfg.Workers
	if w == 0 {
		w = runtime.GOMAXPROCS(0)
	}
	c := &Copier{isa: best(), helpers: make(chan struct{}, w-1)}
	c.scratch.New = func() any { return new(scratch) }
	return c, nil
}

// ISA names the instruction set in use: "avx512", "avx2", "plain" or "go".
func (c *Copier) ISA() string { return c.isa.String() }

// Fits implements transfer.Copier: ErrConvert for a change of dtype that package float lacks.
func (c *Copier) Fits(n lower.Nest) error { return plain.Fits(n) }

// Copy implements transfer.Copier. When ctx ends it stops at the next piece, at most
// a few MiB per worker later, with ErrCanceled and the bytes written until then.
func (c *Copier) Copy(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	s := c.scratch.Get().(*scratch)
	defer c.scratch.Put(s)
	ops, total, err := plain.Resolve(s.ops[:0], ns, src, dst)
	s.ops = ops
	if err != nil {
		return 0, err
	}
	if total < splitFrom {
		if err := ctx.Err(); err != nil {
			return 0, canceled(err, 0)
		}
		exec(c.isa, ops, false)
		return total, nil
	}
	s.pieces = split(s.pieces[:0], ops, pieceSize(total, cap(c.helpers)+1))
	return c.run(ctx, s.pieces, total)
}

func canceled(cause error, done int64) error {
	return fmt.Errorf("%w: after %d bytes: %w", transfer.ErrCanceled, done, cause)
}

// run hands out batches of pieces until none is left or ctx has ended.
func (c *Copier) run(ctx context.Context, pieces []plain.Op, total int64) (int64, error) {
	j := job{pieces: pieces, isa: c.isa, stream: total >= streamFrom,
		batch: pieceSize(total, cap(c.helpers)+1)}
	var wg sync.WaitGroup
	for range (total - 1) / j.batch { // a lone batch needs no helper
		select {
		case c.helpers <- struct{}{}:
			wg.Go(func() { j.work(ctx); <-c.helpers })
			continue
		default: // all busy with other jobs: those who copy already go on alone
		}
		break
	}
	j.work(ctx)
	wg.Wait()
	if done := j.done.Load(); done < total {
		return done, canceled(context.Cause(ctx), done)
	}
	return total, nil
}

// job is one Copy in flight. Its workers take pieces from the front.
type job struct {
	pieces []plain.Op
	isa    isa
	stream bool
	batch  int64 // bytes that a worker takes at once

	done atomic.Int64
	mu   sync.Mutex
	next int // under mu: first piece not taken
}

func (j *job) work(ctx context.Context) {
	for ctx.Err() == nil {
		ops, bytes := j.take()
		if len(ops) == 0 {
			return
		}
		exec(j.isa, ops, j.stream)
		j.done.Add(bytes)
	}
}

// take is the next pieces of about batch bytes: many tiny ones in one call into C.
func (j *job) take() (ops []plain.Op, bytes int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	from := j.next
	for j.next < len(j.pieces) {
		b := j.pieces[j.next].Bytes()
		if bytes > 0 && bytes+b > j.batch {
			break
		}
		bytes += b
		j.next++
	}
	return j.pieces[from:j.next], bytes
}

// pieceSize is pieceBytes, or less so that each of w workers gets a few.
func pieceSize(total int64, w int) int64 {
	return max(min(pieceBytes, total/int64(4*w)), 64<<10)
}
