//go:build cgo

package cuda

/*
#include "shim.h"

#cgo noescape cuda_submit
#cgo nocallback cuda_submit
#cgo noescape cuda_poll
#cgo nocallback cuda_poll
*/
import "C"

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The two declarations of an op must have one layout: a difference does not compile.
var (
	_ [unsafe.Sizeof(Op{}) - unsafe.Sizeof(C.struct_cuda_op{})]byte
	_ [unsafe.Sizeof(C.struct_cuda_op{}) - unsafe.Sizeof(Op{})]byte
	_ [unsafe.Offsetof(Op{}.Stream) - unsafe.Offsetof(C.struct_cuda_op{}.stream)]byte
	_ [MaxStreams - C.CUDA_STREAMS]byte
)

// Lane is some streams that run one program at a time. One goroutine uses it.
type Lane struct {
	c    *Context
	lane C.struct_cuda_lane
	open C.uint32_t // streams whose end was not seen
}

// Lane makes one of n streams. Its owner calls Close.
func (c *Context) Lane(n int) (*Lane, error) {
	l := &Lane{c: c}
	if err := c.d.fail("make streams", C.cuda_lane_make(c.d.api, c.ctx, C.int32_t(n), &l.lane)); err != nil {
		return nil, err
	}
	return l, nil
}

// Streams is how many there are.
func (l *Lane) Streams() int { return int(l.lane.n) }

// Close frees the streams. Nothing may be open.
func (l *Lane) Close() error {
	return l.c.d.fail("free streams", C.cuda_lane_free(l.c.d.api, l.c.ctx, &l.lane))
}

// Submit starts p, whose ops are used during the call alone. After an error part of p may
// have started: Wait all the same.
func (l *Lane) Submit(p *Program) error {
	if len(p.Ops) == 0 {
		return nil
	}
	if err := p.check(l.Streams()); err != nil {
		return err
	}
	c := C.struct_cuda_program{ops: (*C.struct_cuda_op)(unsafe.Pointer(&p.Ops[0])), n: C.int64_t(len(p.Ops)),
		batched: C.int64_t(p.Batched)}
	var pin runtime.Pinner // c is Go's, and so is what it points to
	pin.Pin(&p.Ops[0])
	defer pin.Unpin()
	var started C.uint32_t
	rc := C.cuda_submit(l.c.d.api, l.c.ctx, &l.lane, &c, &started)
	l.open |= started
	return l.c.d.fail("submit copies", rc)
}

// check refuses programs that the C side would read beyond.
func (p *Program) check(streams int) error {
	if p.Batched < 0 || p.Batched > len(p.Ops) {
		return fmt.Errorf("cuda: program of %d ops, %d batched", len(p.Ops), p.Batched)
	}
	for i := range p.Ops {
		if s := p.Ops[i].Stream; s < 0 || int(s) >= streams {
			return fmt.Errorf("cuda: op %d on stream %d of %d", i, s, streams)
		}
	}
	return nil
}

// Poll reports whether everything that was submitted has ended. An error is ErrLost.
func (l *Lane) Poll() (bool, error) { return l.poll(0) }

// poll is Poll for as long as look, or until everything has ended.
func (l *Lane) poll(look time.Duration) (bool, error) {
	if l.lane.lost != 0 {
		return false, fmt.Errorf("%w: a copy was started and cannot be followed", ErrLost)
	}
	if l.open == 0 {
		return true, nil
	}
	rc := C.cuda_poll(l.c.d.api, l.c.ctx, &l.lane, &l.open, C.int64_t(look))
	if err := l.c.d.fail("follow copies", rc); err != nil {
		// Whatever the number: the end of the copies was not seen, and no other call tells it.
		return false, fmt.Errorf("%w: %w", ErrLost, err)
	}
	return l.open == 0, nil
}

const (
	// grain is what a pause can take, however short it is meant to be: a tick of a guest's clock.
	grain = 2 * time.Millisecond
	// spin is how long beyond what is expected a wait looks all the time.
	spin = 5 * time.Millisecond
	// round is how long one call into C looks.
	round = 500 * time.Microsecond
	// nap is what a pause is meant to be.
	nap = 50 * time.Microsecond
)

// Wait polls until everything that was submitted has ended, which is expected to take about
// as long as expect. It keeps its processor, except far from the expected end: a pause costs
// more than most copies. No ctx bounds it: the end of the copies, or of the process, is the
// only proof that memory is quiet.
func (l *Lane) Wait(expect time.Duration) error {
	began := time.Now()
	for {
		look := round
		if at := time.Since(began); at < expect-grain || at > 2*expect+spin {
			look = 0
		}
		done, err := l.poll(look)
		if done || err != nil {
			return err
		}
		if look == 0 { // not time.Sleep, which an idle Go program rounds up to a millisecond
			_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(nap)}, nil)
		}
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
