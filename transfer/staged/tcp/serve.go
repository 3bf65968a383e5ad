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
	"github.com/batonkv/baton/transfer/staged/internal/offers"
)

const (
	maxConns  = 1024             // that are served at once
	handshake = 10 * time.Second // for the greeting and TLS
	// pieceBytes are written at once: an offer that is withdrawn under a fetch sends no
	// more than that.
	pieceBytes = 256 << 10
)

// offered is the chunk that a request may have.
func (w *Wire) offered(a ask) (int32, offers.Status) {
	if a.of != w.cfg.Wire {
		return 0, offers.Other
	}
	return w.Asked(a.offer, a.bytes)
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
		chunk, why := w.offered(a)
		if why != offers.Good {
			out = appendAnswer(out[:0], why, 0)
			if _, err := c.Write(out); err != nil {
				return err
			}
			continue
		}
		err = errors.Join(gather(true), w.send(c, a, chunk), gather(false))
		if err != nil {
			return err
		}
	}
}

// send writes a chunk, as long as it is offered.
func (w *Wire) send(c net.Conn, a ask, chunk int32) error {
	b, err := w.Chunk(chunk, a.bytes)
	if err != nil {
		return err
	}
	bufs := net.Buffers{appendAnswer(nil, offers.Good, a.bytes)}
	for len(b) > 0 {
		n := min(len(b), pieceBytes)
		bufs = append(bufs, b[:n])
		if _, err := bufs.WriteTo(c); err != nil {
			return err
		}
		if b = b[n:]; len(b) == 0 {
			return nil
		}
		if now, why := w.offered(a); why != offers.Good || now != chunk {
			return fmt.Errorf("%w: offer %d was withdrawn", transfer.ErrCanceled, a.offer)
		}
		bufs = bufs[:0]
	}
	return nil
}
