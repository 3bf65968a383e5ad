package tcp

import (
	"net"
	"sync"
)

// gathered is a connection under TLS, which writes a record of 16 KiB at a time: as much of
// a core goes to those calls into the kernel as to the cipher, so they are gathered.
type gathered struct {
	net.Conn

	mu   sync.Mutex // guards:
	out  []byte
	hold bool
}

// gatherBytes are written at once.
const gatherBytes = 256 << 10

// Write implements net.Conn.
func (g *gathered) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.hold {
		return g.Conn.Write(b)
	}
	g.out = append(g.out, b...)
	if len(g.out) < gatherBytes {
		return len(b), nil
	}
	return len(b), g.flush()
}

// gather has writes wait until there are many of them; with false, no longer.
func (g *gathered) gather(hold bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold = hold
	if hold {
		return nil
	}
	return g.flush()
}

func (g *gathered) flush() error {
	if len(g.out) == 0 {
		return nil
	}
	_, err := g.Conn.Write(g.out)
	g.out = g.out[:0]
	return err
}
