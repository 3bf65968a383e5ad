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
	_ [MaxGraphs - C.CUDA_GRAPHS]byte
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
		batched: C.int64_t(p.Batched), graphed: C.int64_t(p.Graphed), graph_ops: C.int32_t(p.GraphOps), branches: C.int32_t(p.Branches)}
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
	graphs := 0
	if p.Graphed > 0 && p.GraphOps > 0 {
		graphs = (p.Graphed + p.GraphOps - 1) / p.GraphOps
	}
	if p.Batched < 0 || p.Graphed < 0 || p.Batched+p.Graphed > len(p.Ops) || graphs > MaxGraphs ||
		p.Graphed > 0 && (p.GraphOps < 1 || p.Branches < 1) {
		return fmt.Errorf("cuda: program of %d ops, %d batched, %d in graphs of %d", len(p.Ops), p.Batched, p.Graphed, p.GraphOps)
	}
	for i := range p.Ops {
		if s := p.Ops[i].Stream; s < 0 || int(s) >= streams {
			return fmt.Errorf("cuda: op %d on stream %d of %d", i, s, streams)
		}
	}
	return nil
}

// Poll reports whether everything that was submitted has ended. An error is ErrLost.
func (l *Lane) Poll() (bool, error) {
	if l.lane.lost != 0 {
		return false, fmt.Errorf("%w: a copy was started and cannot be followed", ErrLost)
	}
	if l.open == 0 && l.lane.live == 0 {
		return true, nil
	}
	rc := C.cuda_poll(l.c.d.api, l.c.ctx, &l.lane, &l.open)
	if err := l.c.d.fail("follow copies", rc); err != nil {
		// Whatever the number: the end of the copies was not seen, and no other call tells it.
		return false, fmt.Errorf("%w: %w", ErrLost, err)
	}
	return l.open == 0, nil
}

const (
	// spin is how long a wait keeps its processor: about a small copy.
	spin = 100 * time.Microsecond
	// nap is the longest pause between two looks.
	nap = 100 * time.Microsecond
)

// Wait polls until everything that was submitted has ended. No ctx bounds it: the end of the
// copies, or of the process, is the only proof that memory is quiet.
func (l *Lane) Wait() error {
	began := time.Now()
	for pause := 10 * time.Microsecond; ; {
		done, err := l.Poll()
		if done || err != nil {
			return err
		}
		if time.Since(began) < spin {
			runtime.Gosched()
			continue
		}
		time.Sleep(pause)
		pause = min(2*pause, nap)
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
