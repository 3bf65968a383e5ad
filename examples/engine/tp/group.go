// Package tp joins the tensor-parallel ranks of one engine: rank 0 in the middle, a
// stream to every other rank. The ranks go in lockstep: a broadcast starts a step, sums
// and a gather follow in an order that every rank knows, so nothing is numbered.
//
// A sum adds the partial sums of single units in ascending order, whoever computed
// them: one rank or four give equal bits.
package tp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
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
)

// Group is one rank's end. One goroutine uses it; Close may come from another.
type Group struct {
	rank, size int
	conns      []net.Conn // rank 0: of ranks 1…; others: of rank 0
	buf, acc   []byte
	once       sync.Once
}

// Single is a group of one rank.
func Single() *Group { return &Group{size: 1} }

// Pipes is a group of size ranks in one process.
func Pipes(size int) []*Group {
	groups := make([]*Group, size)
	groups[0] = &Group{size: size}
	for r := 1; r < size; r++ {
		a, b := net.Pipe()
		groups[0].conns = append(groups[0].conns, a)
		groups[r] = &Group{rank: r, size: size, conns: []net.Conn{b}}
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
			if c != nil { // nil while the group still meets
				_ = c.Close()
			}
		}
	})
	return nil
}

// Sum is the reducer of package model: part is [units][len(out)], own units only.
func (g *Group) Sum(part []float32, units int, out []float32) error {
	n := len(out)
	if len(part) != units*n {
		return fmt.Errorf("%w: %d values for %d units of %d", ErrFrame, len(part), units, n)
	}
	if g.rank > 0 {
		g.acc = appendFloats(g.acc[:0], part)
		if err := g.send(g.conns[0], framePart, g.acc); err != nil {
			return err
		}
		b, err := g.receive(g.conns[0], frameSum)
		if err != nil {
			return err
		}
		return readFloats(out, b)
	}
	copy(out, part[:n])
	for u := 1; u < units; u++ {
		for i, v := range part[u*n : (u+1)*n] {
			out[i] += v
		}
	}
	for _, c := range g.conns {
		b, err := g.receive(c, framePart)
		if err != nil {
			return err
		}
		if len(b) == 0 || len(b)%(4*n) != 0 {
			return fmt.Errorf("%w: %d bytes of partial sums of %d values", ErrFrame, len(b), n)
		}
		for ; len(b) > 0; b = b[4*n:] {
			for i := range out {
				out[i] += math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
			}
		}
	}
	if len(g.conns) == 0 {
		return nil
	}
	g.acc = appendFloats(g.acc[:0], out)
	return g.toAll(frameSum, g.acc)
}

// Broadcast starts a step: rank 0 sends what Receive returns on the others.
func (g *Group) Broadcast(step []byte) error { return g.toAll(frameStep, step) }

// Receive waits for the next step; the bytes are valid until the next call.
func (g *Group) Receive() ([]byte, error) { return g.receive(g.conns[0], frameStep) }

// Report ends a step on a rank other than 0, with what it has to say.
func (g *Group) Report(b []byte) error { return g.send(g.conns[0], frameReport, b) }

// Gather ends a step on rank 0: each is called with every other rank's report.
func (g *Group) Gather(each func(rank int, b []byte) error) error {
	for i, c := range g.conns {
		b, err := g.receive(c, frameReport)
		if err != nil {
			return err
		}
		if err := each(i+1, b); err != nil {
			return err
		}
	}
	return nil
}

func (g *Group) toAll(kind byte, b []byte) error {
	for _, c := range g.conns {
		if err := g.send(c, kind, b); err != nil {
			return err
		}
	}
	return nil
}

func (g *Group) send(c net.Conn, kind byte, b []byte) error { return writeFrame(c, kind, b) }

func (g *Group) receive(c net.Conn, kind byte) ([]byte, error) {
	got, b, err := readFrame(c, g.buf)
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
	bufs := net.Buffers{head[:], b}
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

func appendFloats(b []byte, v []float32) []byte {
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

func readFloats(out []float32, b []byte) error {
	if len(b) != 4*len(out) {
		return fmt.Errorf("%w: %d bytes for %d values", ErrFrame, len(b), len(out))
	}
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return nil
}
