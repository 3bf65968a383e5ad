// Package tp joins the ranks of one engine: a stream between every two. The ranks go in
// lockstep: a broadcast of rank 0 starts a step, collectives of some of the ranks and a
// gather follow in an order that every rank knows, so nothing is numbered.
//
// A sum adds the partial sums of single units in ascending order, whoever computed
// them: one rank or four give equal bits.
package tp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

var (
	// ErrLost: another rank is gone; the group ends.
	ErrLost = errors.New("tp: rank lost")
	// ErrFrame: a rank sent what its peer cannot expect.
	ErrFrame = errors.New("tp: bad frame")
	// ErrJoin: the ranks do not form a group.
	ErrJoin = errors.New("tp: join refused")
)

// MaxFrame bounds one frame in bytes.
const MaxFrame = 16 << 20

// MaxRanks bounds a group.
const MaxRanks = 64

// Kinds of frames.
const (
	frameHello byte = iota + 1
	frameStep
	framePart
	frameSum
	frameReport
	frameRefused
	framePass
	frameExchange
)

// Group is one rank's end. One goroutine uses it; Close may come from another.
type Group struct {
	rank, size int
	conns      []net.Conn // by rank; nil of this one
	buf, acc   []byte
	in         []float32
	once       sync.Once
}

// Single is a group of one rank.
func Single() *Group { return newGroup(0, 1) }

func newGroup(rank, size int) *Group {
	return &Group{rank: rank, size: size, conns: make([]net.Conn, size)}
}

// Pipes is a group of size ranks in one process.
func Pipes(size int) []*Group {
	groups := make([]*Group, size)
	for r := range groups {
		groups[r] = newGroup(r, size)
		for low := range r {
			groups[low].conns[r], groups[r].conns[low] = net.Pipe()
		}
	}
	return groups
}

// Rank and Size say where this end stands.
func (g *Group) Rank() int { return g.rank }

// Size is the number of ranks.
func (g *Group) Size() int { return g.size }

// Close ends every stream: calls under way fail here and on the other ranks.
func (g *Group) Close() error {
	g.once.Do(func() {
		for _, c := range g.conns {
			if c != nil { // also nil while the group still meets
				_ = c.Close()
			}
		}
	})
	return nil
}

// Broadcast starts a step: rank 0 sends what Receive returns on the others.
func (g *Group) Broadcast(step []byte) error {
	for r := 1; r < g.size; r++ {
		if err := g.send(r, frameStep, step); err != nil {
			return err
		}
	}
	return nil
}

// Receive waits for the next step; the bytes are valid until the next call.
func (g *Group) Receive() ([]byte, error) { return g.receive(0, frameStep) }

// Report ends a step on a rank other than 0, with what it has to say.
func (g *Group) Report(b []byte) error { return g.send(0, frameReport, b) }

// Gather ends a step on rank 0: each is called with every other rank's report.
func (g *Group) Gather(each func(rank int, b []byte) error) error {
	for r := 1; r < g.size; r++ {
		b, err := g.receive(r, frameReport)
		if err != nil {
			return err
		}
		if err := each(r, b); err != nil {
			return err
		}
	}
	return nil
}

func (g *Group) send(to int, kind byte, b []byte) error { return writeFrame(g.conns[to], kind, b) }

func (g *Group) receive(from int, kind byte) ([]byte, error) {
	got, b, err := readFrame(g.conns[from], g.buf)
	if err != nil {
		return nil, err
	}
	g.buf = b[:0]
	if got != kind {
		return nil, fmt.Errorf("%w: kind %d, want %d", ErrFrame, got, kind)
	}
	return b, nil
}

// writeFrame sends a length of 4 bytes, little endian, the kind, and b.
func writeFrame(w io.Writer, kind byte, b []byte) error {
	if len(b) > MaxFrame {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrFrame, len(b), MaxFrame)
	}
	var head [5]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(b)))
	head[4] = kind
	bufs := net.Buffers{head[:]}
	if len(b) > 0 { // a pipe waits for a reader of nothing
		bufs = append(bufs, b)
	}
	if _, err := bufs.WriteTo(w); err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return nil
}

// readFrame reads one frame into buf, which it grows in steps as bytes come, so that a
// length alone allocates little.
func readFrame(r io.Reader, buf []byte) (byte, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	n := int(binary.LittleEndian.Uint32(head[:]))
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("%w: %d bytes, at most %d", ErrFrame, n, MaxFrame)
	}
	const piece = 1 << 20
	buf = buf[:0]
	for len(buf) < n {
		from, more := len(buf), min(n-len(buf), piece)
		if cap(buf) < from+more {
			buf = append(make([]byte, 0, from+more), buf...)
		}
		buf = buf[:from+more]
		if _, err := io.ReadFull(r, buf[from:]); err != nil {
			return 0, nil, fmt.Errorf("%w: %w", ErrLost, err)
		}
	}
	return head[4], buf, nil
}
