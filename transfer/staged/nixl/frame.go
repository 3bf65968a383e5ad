package nixl

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/internal/offers"
)

// The side connection, big endian. Who fetches dials, and first says whom it means:
//
//	"BTNH" | u32 version | u64 wire mover
//
// Who serves answers with what it takes to read from it, all 0 if the status is not 0:
//
//	"BTNM" | u32 status | u64 address of the arena | u64 bytes of a chunk | u32 chunks | u32 bytes of metadata | metadata
//
// Then requests, which are answered in order; the chunk is the peer's, 0 if the status is not 0:
//
//	"BTNR" | u64 offer | u64 bytes
//	"BTNA" | u32 status | u32 chunk
const (
	version      = 1
	helloBytes   = 4 + 4 + 8
	welcomeBytes = 4 + 4 + 8 + 8 + 4 + 4
	askBytes     = 4 + 8 + 8
	answerBytes  = 4 + 4 + 4
	helloMagic   = 0x42_54_4e_48
	welcomeMagic = 0x42_54_4e_4d
	askMagic     = 0x42_54_4e_52
	answerMagic  = 0x42_54_4e_41

	maxMetadata = 64 << 10 // bytes; UCX on one device has some 500
	maxChunks   = 1 << 17  // of an arena: both halves
	maxArena    = 1 << 44  // bytes of a chunk: all of them are less than an address
)

var be = binary.BigEndian

func appendHello(b []byte, of staged.Incarnation) []byte {
	return be.AppendUint64(be.AppendUint32(be.AppendUint32(b, helloMagic), version), uint64(of))
}

// decodeHello returns who is meant; an other version is a status, not an error.
func decodeHello(b *[helloBytes]byte) (staged.Incarnation, offers.Status, error) {
	if be.Uint32(b[:]) != helloMagic {
		return 0, 0, fmt.Errorf("%w: not a hello of this protocol", ErrFrame)
	}
	if be.Uint32(b[4:]) != version {
		return 0, offers.Skew, nil
	}
	return staged.Incarnation(be.Uint64(b[8:])), offers.Good, nil
}

// welcome is what it takes to read from a wire mover.
type welcome struct {
	base     uint64
	chunk    int64
	chunks   int32
	metadata []byte
}

func (m welcome) append(b []byte, s offers.Status) []byte {
	b = be.AppendUint32(be.AppendUint32(b, welcomeMagic), uint32(s))
	b = be.AppendUint64(be.AppendUint64(b, m.base), uint64(m.chunk))
	b = be.AppendUint32(be.AppendUint32(b, uint32(m.chunks)), uint32(len(m.metadata)))
	return append(b, m.metadata...)
}

// readWelcome reads an answer to a hello.
func readWelcome(r io.Reader) (m welcome, err error) {
	var b [welcomeBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return m, err
	}
	s := offers.Status(be.Uint32(b[4:]))
	m.base, m.chunk = be.Uint64(b[8:]), int64(be.Uint64(b[16:]))
	chunks, n := be.Uint32(b[24:]), be.Uint32(b[28:])
	switch {
	case be.Uint32(b[:]) != welcomeMagic || s != offers.Good && !s.Known():
		return m, fmt.Errorf("%w: not a welcome of this protocol", ErrFrame)
	case s != offers.Good:
		return m, s.Refusal()
	case n < 1 || n > maxMetadata:
		return m, fmt.Errorf("%w: %d bytes, want 1 to %d", ErrMetadata, n, maxMetadata)
	case m.chunk < 1 || m.chunk > maxArena || chunks < 1 || chunks > maxChunks || m.base+uint64(m.chunk)*uint64(chunks) < m.base:
		return m, fmt.Errorf("%w: %d chunks of %d bytes at %#x are no arena", ErrMetadata, chunks, m.chunk, m.base)
	}
	m.chunks, m.metadata = int32(chunks), make([]byte, n)
	_, err = io.ReadFull(r, m.metadata)
	return m, err
}

type ask struct {
	offer uint64
	bytes int64
}

func (a ask) append(b []byte) []byte {
	return be.AppendUint64(be.AppendUint64(be.AppendUint32(b, askMagic), a.offer), uint64(a.bytes))
}

func decodeAsk(b *[askBytes]byte) (ask, error) {
	a := ask{be.Uint64(b[4:]), int64(be.Uint64(b[12:]))}
	if be.Uint32(b[:]) != askMagic || a.bytes < 1 {
		return ask{}, fmt.Errorf("%w: not a request of this protocol", ErrFrame)
	}
	return a, nil
}

func appendAnswer(b []byte, s offers.Status, chunk int32) []byte {
	return be.AppendUint32(be.AppendUint32(be.AppendUint32(b, answerMagic), uint32(s)), uint32(chunk))
}

// decodeAnswer returns the peer's chunk, of so many, unless the status says why not.
func decodeAnswer(b *[answerBytes]byte, chunks int32) (int32, offers.Status, error) {
	s, c := offers.Status(be.Uint32(b[4:])), be.Uint32(b[8:])
	if be.Uint32(b[:]) != answerMagic || s == offers.Good && c >= uint32(chunks) || s != offers.Good && (c != 0 || !s.Known()) {
		return 0, 0, fmt.Errorf("%w: not an answer of this protocol", ErrFrame)
	}
	return int32(c), s, nil
}
