package nixl

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"time"

	"github.com/batonkv/baton/transfer/staged/internal/offers"
)

const (
	maxConns  = 256              // side connections that are served at once
	handshake = 10 * time.Second // for TLS, and for who is meant
)

// serve answers one peer: who it is, then which of its offers are open.
func (w *Wire) serve(ctx context.Context, c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(handshake))
	if w.cfg.Server != nil {
		t := tls.Server(c, w.cfg.Server)
		if err := t.HandshakeContext(ctx); err != nil {
			return err
		}
		c = t
	}
	var hello [helloBytes]byte
	if _, err := io.ReadFull(c, hello[:]); err != nil {
		return err
	}
	of, why, err := decodeHello(&hello)
	if err != nil {
		return err
	}
	if why == offers.Good && of != w.cfg.Wire {
		why = offers.Other
	}
	if why != offers.Good {
		_, err := c.Write(welcome{}.append(nil, why))
		return err
	}
	if _, err := c.Write(w.reach().append(nil, offers.Good)); err != nil {
		return err
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c, 4<<10)
	out := bufio.NewWriterSize(c, 4<<10)
	var head [askBytes]byte
	var b [answerBytes]byte
	for {
		if r.Buffered() < askBytes { // answers to all that has come go out together
			if err := out.Flush(); err != nil {
				return err
			}
		}
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		a, err := decodeAsk(&head)
		if err != nil {
			return err
		}
		chunk, why := w.Asked(a.offer, a.bytes)
		if _, err := out.Write(appendAnswer(b[:0], why, chunk)); err != nil {
			return err
		}
	}
}
