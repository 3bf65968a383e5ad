//go:build cgo

package owner

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer"
)

const (
	// segment is the size of allocations that small memories share, in bytes.
	segment = 32 << 20
	// skew is where the first small memory of an allocation begins.
	skew = 4096 + 256
	// align is what memories of one segment start at multiples of.
	align = 256
	// maxFDs is how many physical allocations one memory has: as many as one message's
	// descriptors.
	maxFDs = 180
)

// server is the owner's own side. One goroutine uses it.
type server struct {
	driver *cuda.Driver
	gpus   map[int]*cuda.Context
	open   map[int]*seg // by GPU: where small memories go
	undo   map[int]func() error
	next   int
}

// seg is a shared allocation.
type seg struct {
	at    uint64
	used  int64
	users int
}

// Serve is the whole life of an owner process.
func Serve() error {
	syscall.CloseOnExec(lifeline.FirstExtra)
	c, err := conn(lifeline.FirstExtra)
	if err != nil {
		return err
	}
	defer c.Close()
	s := &server{gpus: map[int]*cuda.Context{}, open: map[int]*seg{}, undo: map[int]func() error{}}
	for {
		var q request
		if _, err := read(c, &q); err != nil {
			return nil // who started it is gone
		}
		if err := s.serve(c, q); err != nil {
			return err
		}
	}
}

func (s *server) serve(c *net.UnixConn, q request) error {
	if q.Free != 0 {
		var r reply
		if f := s.undo[q.Free]; f == nil {
			r.Err = fmt.Sprintf("owner: no allocation %d", q.Free)
		} else if err := f(); err != nil {
			r.Err = err.Error()
		}
		delete(s.undo, q.Free)
		return write(c, r, nil)
	}
	m, undo, err := s.alloc(q)
	if err != nil {
		return write(c, reply{Err: err.Error()}, nil)
	}
	s.next++
	s.undo[s.next] = undo
	fds := m.FDs()
	defer closeAll(fds)
	return write(c, reply{Number: s.next, Memory: m}, fds)
}

func (s *server) context(gpu int) (*cuda.Context, error) {
	if s.driver == nil {
		d, err := cuda.Open()
		if err != nil {
			return nil, err
		}
		s.driver = d
	}
	if s.gpus[gpu] == nil {
		c, err := s.driver.Context(gpu)
		if err != nil {
			return nil, err
		}
		s.gpus[gpu] = c
	}
	return s.gpus[gpu], nil
}

func (s *server) alloc(q request) (m transfer.Memory, undo func() error, err error) {
	c, err := s.context(q.GPU)
	if err != nil {
		return m, nil, err
	}
	var at uint64
	if q.Kind == transfer.CUDAFD {
		at, undo, err = s.physical(c, q.Bytes)
	} else {
		at, undo, err = s.plain(c, q.GPU, q.Bytes)
	}
	if err != nil {
		return m, nil, err
	}
	x, err := c.Export(at, q.Bytes)
	if err != nil {
		return m, nil, errors.Join(err, undo())
	}
	m = transfer.Memory{Kind: q.Kind, FD: -1, Off: x.Off, Len: q.Bytes, GPU: &transfer.GPU{UUID: c.Device().UUID, Handle: x.Handle}}
	for i, fd := range x.FDs {
		m.GPU.Chunks = append(m.GPU.Chunks, transfer.Chunk{FD: fd, Len: x.Sizes[i]})
	}
	return m, undo, nil
}

// plain puts n bytes into a segment, or, if they are many, into an allocation of their own.
func (s *server) plain(c *cuda.Context, gpu int, n int64) (uint64, func() error, error) {
	if n >= segment {
		at, err := c.Alloc(n)
		return at, func() error { return c.Free(at) }, err
	}
	g := s.open[gpu]
	if g == nil || g.used+n > segment+skew {
		at, err := c.Alloc(segment + skew)
		if err != nil {
			return 0, nil, err
		}
		g = &seg{at: at, used: skew}
		s.open[gpu] = g
	}
	at := g.at + uint64(g.used)
	g.used += (n + align - 1) / align * align
	g.users++
	return at, func() error {
		if g.users--; g.users > 0 {
			return nil
		}
		if s.open[gpu] == g {
			delete(s.open, gpu)
		}
		return c.Free(g.at)
	}, nil
}

// physical makes n bytes of physical allocations, the first of them smaller than the others.
func (s *server) physical(c *cuda.Context, n int64) (uint64, func() error, error) {
	g, err := c.Grain()
	if err != nil {
		return 0, nil, err
	}
	each := max(10*g, (n/maxFDs+g-1)/g*g)
	first := int64(skew)
	if n >= segment {
		first = 0
	}
	sizes := []int64{g}
	for left := n + first - g; left > 0; left -= each {
		sizes = append(sizes, each)
	}
	k, err := c.Make(sizes...)
	if err != nil {
		return 0, nil, err
	}
	return k.At + uint64(first), k.Close, nil
}
