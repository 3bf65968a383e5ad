package staged

import (
	"encoding/binary"
	"fmt"
)

// Stamp names the bytes of one chunk. It stands at the head and at the tail of the
// chunk, inside the one descriptor that the wire moves. Equal stamps do not prove the
// body, since a wire may deliver in any order: the rules of Source and Dest do. A
// stamp catches a chunk that was reused against the rules, or read from elsewhere.
type Stamp struct {
	Job   Job
	Seq   int32  // number of the chunk within the job
	Offer uint64 // of the source
}

// StampBytes is the room of one stamp: a cache line, so that a body that starts after
// it is as well aligned as the chunk.
const StampBytes = 64

// The magics differ so that a head is never taken for a tail.
const (
	headMagic = 0x42_4e_53_48 // "BNSH"
	tailMagic = 0x42_4e_53_54 // "BNST"
)

// BodyRoom is the largest body of a chunk of so many bytes, 0 when none fits. It is a
// multiple of StampBytes.
func BodyRoom(chunk int64) int64 {
	if chunk < 3*StampBytes {
		return 0
	}
	return (chunk - 2*StampBytes) / StampBytes * StampBytes
}

// ChunkBytes is the length of the descriptor of a body with its stamps, or an error
// when it does not fit a chunk of so many bytes. The body starts at StampBytes, the
// tail is at the length less StampBytes.
func ChunkBytes(chunk, body int64) (int64, error) {
	if chunk < 2*StampBytes || body < 0 || body > BodyRoom(chunk) {
		return 0, fmt.Errorf("%w: body of %d bytes in a chunk of %d, want 0 to %d", ErrConfig, body, chunk, BodyRoom(chunk))
	}
	return 2*StampBytes + (body+StampBytes-1)/StampBytes*StampBytes, nil
}

func (s Stamp) encode(magic uint32, body int64) (b [StampBytes]byte) {
	le := binary.LittleEndian
	le.PutUint32(b[0:], magic)
	le.PutUint32(b[4:], s.Job.Pair)
	copy(b[8:24], s.Job.Handoff[:])
	le.PutUint64(b[24:], s.Job.Attempt)
	le.PutUint32(b[32:], uint32(s.Seq))
	le.PutUint32(b[36:], s.Job.Part)
	le.PutUint64(b[40:], s.Offer)
	le.PutUint64(b[48:], uint64(body))
	return b
}

// WriteHead stamps the head of a chunk. It goes first, so that a reader of the
// chunk's former bytes finds unequal stamps.
func (s Stamp) WriteHead(chunk []byte, body int64) error {
	_, err := ChunkBytes(int64(len(chunk)), body)
	if err == nil {
		b := s.encode(headMagic, body)
		copy(chunk, b[:])
	}
	return err
}

// WriteTail stamps the tail, after the body.
func (s Stamp) WriteTail(chunk []byte, body int64) error {
	n, err := ChunkBytes(int64(len(chunk)), body)
	if err == nil {
		b := s.encode(tailMagic, body)
		copy(chunk[n-StampBytes:], b[:])
	}
	return err
}

// Verify returns the body of a chunk whose two stamps are s, else ErrStamp. The body
// aliases chunk.
func (s Stamp) Verify(chunk []byte, body int64) ([]byte, error) {
	n, err := ChunkBytes(int64(len(chunk)), body)
	if err != nil {
		return nil, err
	}
	if head := s.encode(headMagic, body); [StampBytes]byte(chunk) != head {
		return nil, fmt.Errorf("%w: head of chunk %d", ErrStamp, s.Seq)
	}
	if tail := s.encode(tailMagic, body); [StampBytes]byte(chunk[n-StampBytes:]) != tail {
		return nil, fmt.Errorf("%w: tail of chunk %d", ErrStamp, s.Seq)
	}
	return chunk[StampBytes : StampBytes+body], nil
}
