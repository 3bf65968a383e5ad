// Package wire is Dynamo's request plane in bytes: frames, the control header of a call,
// the items that answer it, and errors as items, in JSON and in msgpack. It reads from an
// io.Reader and writes to slices; it opens nothing, and whatever comes in is bounded before
// it is allocated.
//
// A call goes over two connections. On the first the client sends a Frame and gets one Ack,
// in order. On the second, which the worker dials, the worker sends TwoParts: a handshake,
// a prologue, items, a last item, a sentinel; the client may send stop or kill.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// ErrMalformed says that bytes are not what the request plane has at this place; ErrRoom that
// there is no room for a request, which was read past.
var (
	ErrMalformed = errors.New("dynamo wire: malformed")
	ErrRoom      = errors.New("dynamo wire: no room for the request")
)

// Bounds of what is read and written.
const (
	MaxPath    = 1 << 10
	MaxHeaders = 1<<16 - 1
	MaxControl = 64 << 10 // bytes of a TwoPart's header
	MaxMessage = 32 << 20 // of a Frame's payload and of a TwoPart's body
	MaxAck     = 4 << 10
)

// twoPart is the bytes before a TwoPart's header: lengths of header and body, checksum.
const twoPart = 24

// Frame is one request as its connection carries it. The fields share its memory.
type Frame struct {
	Path    string // that the worker advertised for the endpoint
	Headers []byte // JSON map of strings: request-id, traceparent, …
	Control []byte // JSON, of DecodeControl
	Body    []byte // of the codec that Control names
}

// ReadFrame reads one request. room is asked for the memory of its payload as that comes; when
// it gives none the rest is read past, and ErrRoom leaves the reader at the next request.
// io.EOF: the connection ended between two.
func ReadFrame(r io.Reader, room func(bytes int64) bool) (Frame, error) {
	var f Frame
	n, err := size16(r)
	if err != nil {
		return f, err
	}
	if n > MaxPath {
		return f, fmt.Errorf("%w: path of %d bytes, at most %d", ErrMalformed, n, MaxPath)
	}
	path, err := take(r, n)
	if err != nil {
		return f, err
	}
	f.Path = string(path)
	if n, err = size16(r); err != nil {
		return f, inside(err)
	}
	if f.Headers, err = take(r, n); err != nil {
		return f, err
	}
	var head [4]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return f, inside(err)
	}
	total := int64(binary.BigEndian.Uint32(head[:]))
	if total > twoPart+MaxControl+MaxMessage {
		return f, fmt.Errorf("%w: request of %d bytes, at most %d", ErrMalformed, total, MaxMessage)
	}
	limited := &io.LimitedReader{R: r, N: total}
	t, err := readTwoPart(limited, room)
	switch {
	case errors.Is(err, ErrRoom):
		if _, e := io.Copy(io.Discard, limited); e != nil || limited.N != 0 {
			return f, fmt.Errorf("%w: %d bytes before the end of a request", io.ErrUnexpectedEOF, limited.N)
		}
		return f, err
	case limited.N == 0 && errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return f, fmt.Errorf("%w: payload of %d bytes is shorter than its parts", ErrMalformed, total)
	case err != nil:
		return f, err
	case limited.N != 0:
		return f, fmt.Errorf("%w: %d bytes after the parts of a payload", ErrMalformed, limited.N)
	}
	f.Control, f.Body = t.Header, t.Body
	return f, nil
}

// AppendFrame appends f.
func AppendFrame(b []byte, f Frame) ([]byte, error) {
	if len(f.Path) > MaxPath || len(f.Headers) > MaxHeaders || len(f.Control) > MaxControl || len(f.Body) > MaxMessage {
		return b, fmt.Errorf("%w: request with path, headers, control and body of %d, %d, %d and %d bytes, at most %d, %d, %d and %d",
			ErrMalformed, len(f.Path), len(f.Headers), len(f.Control), len(f.Body), MaxPath, MaxHeaders, MaxControl, MaxMessage)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(len(f.Path)))
	b = append(b, f.Path...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(f.Headers)))
	b = append(b, f.Headers...)
	b = binary.BigEndian.AppendUint32(b, uint32(twoPart+len(f.Control)+len(f.Body)))
	return AppendTwoPart(b, TwoPart{f.Control, f.Body}), nil
}

// TwoPart is one message of a call-home connection; a control message has a header alone,
// an item a body alone.
type TwoPart struct{ Header, Body []byte }

// ReadTwoPart reads one. io.EOF: the connection ended between two. The checksum is not
// looked at: Dynamo writes 0.
func ReadTwoPart(r io.Reader) (TwoPart, error) { return readTwoPart(r, always) }

// DecodeTwoPart reads one that is the whole of b, whose memory it shares, as the request plane over
// NATS has them.
func DecodeTwoPart(b []byte) (TwoPart, error) {
	header, body, err := sizes(b)
	if err == nil && uint64(len(b)-twoPart) != header+body {
		err = fmt.Errorf("%w: message of %d bytes, its parts have %d", ErrMalformed, len(b), twoPart+header+body)
	}
	if err != nil {
		return TwoPart{}, err
	}
	b = b[twoPart:]
	return TwoPart{Header: b[:header:header], Body: b[header:]}, nil
}

// sizes reads the lengths of header and body, which are within their bounds.
func sizes(b []byte) (header, body uint64, err error) {
	if len(b) < twoPart {
		return 0, 0, fmt.Errorf("%w: message of %d bytes", ErrMalformed, len(b))
	}
	header, body = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	if header > MaxControl || body > MaxMessage {
		err = fmt.Errorf("%w: message with header and body of %d and %d bytes, at most %d and %d", ErrMalformed, header, body, MaxControl, MaxMessage)
	}
	return header, body, err
}

func readTwoPart(r io.Reader, room func(bytes int64) bool) (TwoPart, error) {
	var t TwoPart
	var head [twoPart]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return t, err
	}
	header, body, err := sizes(head[:])
	if err != nil {
		return t, err
	}
	if t.Header, err = takeWithin(r, int64(header), room); err != nil {
		return t, err
	}
	t.Body, err = takeWithin(r, int64(body), room)
	return t, err
}

// AppendTwoPart appends t.
func AppendTwoPart(b []byte, t TwoPart) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(t.Header)))
	b = binary.BigEndian.AppendUint64(b, uint64(len(t.Body)))
	b = binary.BigEndian.AppendUint64(b, 0)
	return append(append(b, t.Header...), t.Body...)
}

// ReadAck reads the answer to a Frame: "" is the acknowledgement, any other text
// may be a refusal; Dynamo takes one that begins with no known word as an acknowledgement.
func ReadAck(r io.Reader) (string, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxAck {
		return "", fmt.Errorf("%w: answer of %d bytes, at most %d", ErrMalformed, n, MaxAck)
	}
	b, err := take(r, int64(n))
	return string(b), err
}

// AppendAck appends an answer, cut to MaxAck.
func AppendAck(b []byte, text string) []byte {
	text = text[:min(len(text), MaxAck)]
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...)
}

// size16 reads a length at the start of a frame.
func size16(r io.Reader) (int64, error) {
	var head [2]byte
	_, err := io.ReadFull(r, head[:])
	return int64(binary.BigEndian.Uint16(head[:])), err
}

// piece is what is allocated before any of it has come.
const piece = 64 << 10

func always(int64) bool { return true }

// take reads n bytes.
func take(r io.Reader, n int64) ([]byte, error) { return takeWithin(r, n, always) }

// takeWithin reads n bytes. Memory grows with what comes, not with what was announced, and room
// is asked for each piece of it.
func takeWithin(r io.Reader, n int64, room func(bytes int64) bool) ([]byte, error) {
	b := make([]byte, 0, min(n, piece))
	for have := int64(0); have < n; have = int64(len(b)) {
		next := min(n-have, max(piece, have)) // what is held doubles
		if !room(next) {
			return nil, fmt.Errorf("%w: %d of %d bytes", ErrRoom, have, n)
		}
		b = slices.Grow(b, int(next))[:have+next]
		if m, err := io.ReadFull(r, b[have:]); err != nil {
			return nil, inside(fmt.Errorf("%w after %d of %d bytes", err, have+int64(m), n))
		}
	}
	return b, nil
}

// inside is the error of a connection that ends within a message.
func inside(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
