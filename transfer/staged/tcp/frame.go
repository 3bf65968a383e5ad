package tcp

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/internal/offers"
)

// The wire, big endian. Who fetches dials, and writes requests:
//
//	"BTNR" | u64 wire mover that is meant | u64 offer | u64 bytes
//
// Who offers answers them in order:
//
//	"BTNA" | u32 status | u64 bytes | the bytes, if the status is 0
const (
	askBytes    = 4 + 3*8
	answerBytes = 4 + 4 + 8
	askMagic    = 0x42_54_4e_52
	answerMagic = 0x42_54_4e_41
)

type ask struct {
	of    staged.Incarnation
	offer uint64
	bytes int64
}

var be = binary.BigEndian

func (a ask) append(b []byte) []byte {
	b = be.AppendUint64(be.AppendUint32(b, askMagic), uint64(a.of))
	return be.AppendUint64(be.AppendUint64(b, a.offer), uint64(a.bytes))
}

func decodeAsk(b *[askBytes]byte) (ask, error) {
	a := ask{staged.Incarnation(be.Uint64(b[4:])), be.Uint64(b[12:]), int64(be.Uint64(b[20:]))}
	if be.Uint32(b[:]) != askMagic || a.bytes < 1 {
		return ask{}, fmt.Errorf("%w: not a request of this protocol", ErrFrame)
	}
	return a, nil
}

func appendAnswer(b []byte, s offers.Status, bytes int64) []byte {
	return be.AppendUint64(be.AppendUint32(be.AppendUint32(b, answerMagic), uint32(s)), uint64(bytes))
}

// readAnswer reads the head of an answer to a request of want bytes: nil when the bytes follow.
func readAnswer(r io.Reader, want int64) (refused, err error) {
	var b [answerBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, err
	}
	s, n := offers.Status(be.Uint32(b[4:])), int64(be.Uint64(b[8:]))
	switch {
	case be.Uint32(b[:]) != answerMagic, s == offers.Good && n != want, s != offers.Good && (n != 0 || !s.Known()):
		return nil, fmt.Errorf("%w: not an answer of this protocol", ErrFrame)
	case s != offers.Good:
		return s.Refusal(), nil
	}
	return nil, nil
}
