package tcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
)

const (
	maxConns  = 1024             // that are served at once
	handshake = 10 * time.Second // for the greeting and TLS
	// pieceBytes are written at once: an offer that is withdrawn under a fetch sends no
	// more than that.
	pieceBytes = 256 << 10
)

// Offer implements staged.Wire.
func (w *Wire) Offer(o staged.Exposed) error {
	if _, err := w.chunk(o.Chunk, o.Bytes); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.offers[o.Offer] = o
	return nil
}

// Withdraw implements staged.Wire.
func (w *Wire) Withdraw(offer uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.offers, offer)
}

// offered is what a request may have.
func (w *Wire) offered(a ask) (staged.Exposed, status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o, ok := w.offers[a.offer]; {
	case a.of != w.cfg.Wire:
		return o, other
	case !ok:
		return o, closed
	case o.Bytes != a.bytes:
		return o, length
	default:
		return o, good
	}
}

// serve answers one connection's requests in order.
func (w *Wire) serve(ctx context.Context, c net.Conn) error {
	gather := func(bool) error { return nil }
	if w.cfg.security() == secured {
		g := &gathered{Conn: c}
		c, gather = g, g.gather
	}
	c, err := w.greet(ctx, c, false, handshake)
	if err != nil {
		return err
	}
	r := bufio.NewReaderSize(c, 4<<10)
	var head [askBytes]byte
	var out []byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		a, err := decodeAsk(&head)
		if err != nil {
			return err
		}
		o, why := w.offered(a)
		if why != good {
			out = appendAnswer(out[:0], why, 0)
			if _, err := c.Write(out); err != nil {
				return err
			}
			continue
		}
		err = errors.Join(gather(true), w.send(c, a, o), gather(false))
		if err != nil {
			return err
		}
	}
}

// send writes a chunk, as long as it is offered.
func (w *Wire) send(c net.Conn, a ask, o staged.Exposed) error {
	b, err := w.chunk(o.Chunk, o.Bytes)
	if err != nil {
		return err
	}
	bufs := net.Buffers{appendAnswer(nil, good, o.Bytes)}
	for len(b) > 0 {
		n := min(len(b), pieceBytes)
		bufs = append(bufs, b[:n])
		if _, err := bufs.WriteTo(c); err != nil {
			return err
		}
		if b = b[n:]; len(b) == 0 {
			return nil
		}
		if now, why := w.offered(a); why != good || now.Chunk != o.Chunk {
			return fmt.Errorf("%w: offer %d was withdrawn", transfer.ErrCanceled, a.offer)
		}
		bufs = bufs[:0]
	}
	return nil
}

// chunk is the first n bytes of a chunk of the own arena.
func (w *Wire) chunk(chunk int32, n int64) ([]byte, error) {
	at := int64(chunk) * w.cfg.Chunk
	if chunk < 0 || n < 1 || n > w.cfg.Chunk || at+n > int64(len(w.cfg.Arena)) {
		return nil, fmt.Errorf("%w: %d bytes of chunk %d", transfer.ErrBounds, n, chunk)
	}
	return w.cfg.Arena[at : at+n : at+n], nil
}
