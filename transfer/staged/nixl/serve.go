package nixl

import (
	"bufio"
	"io"
	"net"
)

// serve answers one peer: who it is, then which of its offers are open.
func (w *Wire) serve(c net.Conn) error {
	var hello [helloBytes]byte
	if _, err := io.ReadFull(c, hello[:]); err != nil {
		return err
	}
	of, why, err := decodeHello(&hello)
	if err != nil {
		return err
	}
	if why == good && of != w.cfg.Wire {
		why = other
	}
	if why != good {
		_, err := c.Write(welcome{}.append(nil, why))
		return err
	}
	if _, err := c.Write(w.reach().append(nil, good)); err != nil {
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
		chunk, why := w.offered(a)
		if _, err := out.Write(appendAnswer(b[:0], why, chunk)); err != nil {
			return err
		}
	}
}

// offered is the chunk that a request may have.
func (w *Wire) offered(a ask) (int32, status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o, ok := w.offers[a.offer]; {
	case !ok:
		return 0, closed
	case o.Bytes != a.bytes:
		return 0, length
	default:
		return o.Chunk, good
	}
}
