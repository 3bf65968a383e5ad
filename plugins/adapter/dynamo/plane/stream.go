package plane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// Stream is the answer of one call. It is its handler's, until that returns.
type Stream struct {
	conn  net.Conn
	codec wire.Codec
	buf   []byte
	last  []byte // was to be the last item, and is not sent yet
	lost  error  // of the write that failed: what follows would be read as the rest of it
	bare  bool   // a bare item is sent: its caller may want nothing more, and go

	place *chan struct{} // which of the server's bounds the call counts against
	waits chan struct{}
	asked int // bytes of the request
}

// maxWaiting bounds the request of a call that waits: it stays in memory for as long.
const maxWaiting = 64 << 10

// Wait says that the call waits for something to happen from here on, and counts among those
// that do; an error says that there are too many.
func (s *Stream) Wait() error {
	if s.asked > maxWaiting {
		return Fault(wire.InvalidArgument, "request of %d bytes: one that waits has at most %d", s.asked, maxWaiting)
	}
	select {
	case s.waits <- struct{}{}:
	default:
		return Fault(wire.ResourceExhausted, "%d calls wait for something to happen", cap(s.waits))
	}
	<-*s.place
	*s.place = s.waits
	return nil
}

// Send sends an item. An error says that the caller is gone, or that v is too large.
func (s *Stream) Send(v any) error { return s.send(v, true) }

// Last sends the item that ends an answer: with the end, in one message, when the handler
// returns. An error says that v is too large.
func (s *Stream) Last(v any) error {
	b, err := s.item(v, true)
	if err == nil {
		s.last = b
	}
	return err
}

// SendBare is Send for callers that want the item by itself, as Dynamo's own services do.
func (s *Stream) SendBare(v any) error {
	err := s.send(v, false)
	s.bare = s.bare || err == nil
	return err
}

func (s *Stream) send(v any, annotated bool) error {
	b, err := s.item(v, annotated)
	if err != nil {
		return err
	}
	return s.write(b)
}

// item is v behind what is to be sent before it.
func (s *Stream) item(v any, annotated bool) ([]byte, error) {
	b, err := s.codec.Encode(v)
	if err != nil {
		return nil, err
	}
	if b, err = wire.AppendItem(s.begin(), s.codec, b, annotated); err != nil {
		s.last = b // as it was
		return nil, err
	}
	return b, nil
}

// begin is where the next message is written.
func (s *Stream) begin() []byte {
	if b := s.last; b != nil {
		s.last = nil
		return b
	}
	return s.buf[:0]
}

// write sends b, and keeps its memory if that is small.
func (s *Stream) write(b []byte) error {
	if cap(b) <= 64<<10 {
		s.buf = b
	}
	if s.lost != nil {
		return s.lost
	}
	if s.lost = s.conn.SetWriteDeadline(time.Now().Add(writeWithin)); s.lost == nil {
		_, s.lost = s.conn.Write(b)
	}
	return s.lost
}

// answer calls home and has h answer, which may change the call's place. An error says that
// the caller got no whole answer.
func (s *Server) answer(h Handler, c Call, home wire.Home, place *chan struct{}) error {
	ctx, cancel := context.WithTimeoutCause(s.ctx, s.cfg.Longest, fmt.Errorf("call took longer than %v", s.cfg.Longest))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	conn, err := (&net.Dialer{Timeout: dialWithin}).DialContext(ctx, "tcp", home.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	out := &Stream{conn: conn, codec: c.Codec, place: place, waits: s.waits, asked: len(c.Body)}
	hello, err := greeting(home.Subject)
	if err == nil {
		err = out.write(hello)
	}
	if err != nil {
		return err
	}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		end(listen(conn, end))
	}()
	err = s.handle(ctx, h, c, out)
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrKilled) {
		err = nil // nobody listens
	} else if err = out.finish(err); errors.Is(cause, ErrStopped) || out.bare {
		err = nil // who wanted no more may be gone
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite() // it fails when the caller has gone first
	}
	_ = conn.SetReadDeadline(time.Now().Add(quitWithin)) // so does this
	<-heard
	return err
}

// greeting is the handshake and the prologue.
func greeting(subject string) ([]byte, error) {
	shake, err := wire.JSON.Encode(wire.Handshake{Subject: subject, StreamType: wire.Response})
	if err != nil {
		return nil, err
	}
	prologue, err := wire.JSON.Encode(wire.Prologue{})
	b := wire.AppendTwoPart(nil, wire.TwoPart{Header: shake})
	return wire.AppendTwoPart(b, wire.TwoPart{Header: prologue}), err
}

// maxWord bounds a message of a caller that is answered, in bytes: it is a word.
const maxWord = 4 << 10

// listen hears the caller until its connection ends, and returns what its end means. end is
// told of a stop, after which the answer still goes out.
func listen(conn net.Conn, end context.CancelCauseFunc) error {
	r := bufio.NewReaderSize(conn, 256)
	for {
		t, err := wire.ReadTwoPart(io.LimitReader(r, maxWord))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrKilled, err)
		}
		switch string(t.Header) {
		case wire.Stop:
			end(ErrStopped)
		case wire.Kill:
			return ErrKilled
		}
	}
}

// handle runs h; a panic of it is a fault, not the end of the process.
func (s *Server) handle(ctx context.Context, h Handler, c Call, out *Stream) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.cfg.Log.Error("a Dynamo endpoint panics", "path", c.Path, "panic", r)
			err = Fault(wire.Unknown, "endpoint panics")
		}
	}()
	return h(ctx, c, out)
}

// maxFault bounds each text of an error item, in bytes.
const maxFault = 4 << 10

// shown is f as it may be sent. Its texts are bounded, and they are UTF-8: a client that
// cannot read the error gets no answer at all.
func shown(f wire.Fault) wire.Fault {
	cut := func(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxFault)], "") }
	f.Message, f.Diagnostic = cut(f.Message), cut(f.Diagnostic)
	if f.Public != nil {
		f.Public = &wire.Public{Type: f.Public.Type, Message: cut(f.Public.Message)}
	}
	return f
}

// finish ends the answer in order, with the error that its handler returned.
func (s *Stream) finish(err error) error {
	b := s.begin()
	if err != nil {
		f, ok := errors.AsType[*wire.Fault](err)
		if !ok {
			f = &wire.Fault{Type: wire.Type{Name: wire.Unknown}, Message: err.Error()}
		}
		var e error
		if b, e = wire.AppendFault(b, s.codec, shown(*f)); e != nil {
			return e
		}
	}
	return s.write(wire.AppendFinal(b, s.codec))
}
