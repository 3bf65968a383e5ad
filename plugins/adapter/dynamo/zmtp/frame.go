package zmtp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// Flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// frame is one of a message, or a command.
type frame struct {
	command, more bool
	body          []byte
}

// greeting is what either side sends first: version 3.0, mechanism NULL.
func greeting() []byte {
	var b [64]byte
	b[0], b[8], b[9], b[10] = 0xff, 1, 0x7f, 3
	copy(b[12:], "NULL")
	return b[:]
}

func readGreeting(r io.Reader) error {
	var b [64]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return err
	}
	if b[0] != 0xff || b[9] != 0x7f || b[10] < 3 {
		return fmt.Errorf("%w: greeting % x: want version 3", ErrMalformed, b[:12])
	}
	if mechanism := bytes.TrimRight(b[12:32], "\x00"); string(mechanism) != "NULL" {
		return fmt.Errorf("%w: mechanism %q: want NULL", ErrMalformed, mechanism)
	}
	return nil
}

// readReady reads the command after the greeting.
func readReady(r io.Reader) error {
	f, err := readFrame(r)
	if err != nil {
		return err
	}
	name, rest, ok := f.name()
	if !ok || name != "READY" {
		return fmt.Errorf("%w: %.20q: want READY", ErrMalformed, f.body)
	}
	for len(rest) > 0 {
		n := int(rest[0])
		if len(rest) < 1+n+4 {
			return fmt.Errorf("%w: READY ends within a property", ErrMalformed)
		}
		size := binary.BigEndian.Uint32(rest[1+n:])
		if uint64(size) > uint64(len(rest)-n-5) {
			return fmt.Errorf("%w: READY ends within a value", ErrMalformed)
		}
		key, value := rest[1:1+n], rest[n+5:n+5+int(size)]
		if rest = rest[n+5+int(size):]; bytes.EqualFold(key, []byte("Socket-Type")) && string(value) != "SUB" && string(value) != "XSUB" {
			return fmt.Errorf("%w: a %.10q socket: want SUB", ErrMalformed, value)
		}
	}
	return nil
}

// readFrame reads one; those of subscribers are short.
func readFrame(r io.Reader) (f frame, err error) {
	var head [9]byte
	if _, err = io.ReadFull(r, head[:2]); err != nil {
		return f, err
	}
	size := uint64(head[1])
	if head[0]&flagLong != 0 {
		if _, err = io.ReadFull(r, head[2:]); err != nil {
			return f, err
		}
		size = binary.BigEndian.Uint64(head[1:])
	}
	if size > maxFrame || head[0] > flagMore|flagLong|flagCommand {
		return f, fmt.Errorf("%w: frame of %d bytes with flags %#x, at most %d", ErrMalformed, size, head[0], maxFrame)
	}
	f = frame{command: head[0]&flagCommand != 0, more: head[0]&flagMore != 0, body: make([]byte, size)}
	_, err = io.ReadFull(r, f.body)
	return f, err
}

// appendFrame appends a frame of a message.
func appendFrame(b, body []byte, more bool) []byte {
	var flags byte
	if more {
		flags = flagMore
	}
	return appendFlagged(b, flags, body)
}

func appendFlagged(b []byte, flags byte, body []byte) []byte {
	if len(body) < 256 {
		b = append(b, flags, byte(len(body)))
	} else {
		b = append(b, flags|flagLong)
		b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	}
	return append(b, body...)
}

func appendCommand(b []byte, name string, data []byte) []byte {
	body := append([]byte{byte(len(name))}, name...)
	return appendFlagged(b, flagCommand, append(body, data...))
}

// property is one of READY.
func property(key, value string) []byte {
	b := append([]byte{byte(len(key))}, key...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

// name is that of a command, and what follows it.
func (f frame) name() (name string, rest []byte, ok bool) {
	if !f.command || len(f.body) == 0 || len(f.body) < 1+int(f.body[0]) {
		return "", nil, false
	}
	n := 1 + int(f.body[0])
	return string(f.body[1:n]), f.body[n:], true
}

// subscription is a topic that is wanted or not: a message in 3.0, a command since 3.1.
func (f frame) subscription() (topic []byte, on, ok bool) {
	if name, rest, is := f.name(); is {
		return rest, name == "SUBSCRIBE", name == "SUBSCRIBE" || name == "CANCEL"
	}
	if f.command || f.more || len(f.body) == 0 || f.body[0] > 1 {
		return nil, false, false
	}
	return f.body[1:], f.body[0] == 1, true
}

// maxContext bounds what a ping has echoed.
const maxContext = 16

// pong answers a PING; nil for other commands.
func pong(f frame) []byte {
	name, rest, ok := f.name()
	if !ok || name != "PING" || len(rest) < 2 || len(rest) > 2+maxContext {
		return nil
	}
	return appendCommand(nil, "PONG", rest[2:])
}
