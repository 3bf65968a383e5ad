// Package codec turns the messages of sidecar/handoff into protobuf and back. It is
// the one place that knows both; what a message means is not its matter.
//
// Both directions check the same bounds and fail with handoff.ErrBound and the
// field's name, so a sender hears of an oversized message before its session would
// end by it. Encoding copies every slice: the sender may reuse them. Decoding keeps
// the slices of the protobuf message. An empty slice decodes to nil.
package codec

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// Bounds of what may cross a process border, in bytes or elements.
const (
	MaxMessage = 16 << 20 // one encoded message
	MaxString  = 256
	MaxText    = 4 << 10 // why something failed
	MaxTokens  = 1 << 20 // of one prompt
	MaxBlocks  = 1 << 20 // of one block table or hash chain
	MaxShards  = 1 << 16
	MaxStates  = 1 << 12
	MaxBuffers = 1 << 12
	MaxChunks  = 1 << 12 // physical allocations of one buffer
	MaxFiles   = 1 << 14 // descriptors of one rank's buffers
	MaxRanks   = 1 << 14
	MaxPins    = 1 << 16 // stated in one message
	MaxParts   = 1 << 16 // in which one hand-off leaves
	MaxStated  = 1 << 14 // decisions stated in one message
	MaxResume  = 1 << 10 // resume tokens
	MaxSampler = 1 << 20 // bytes of sampler state
	MaxEvents  = 1 << 12 // block events of one message
	maxHold    = 1 << 56 // nanoseconds, two years
	maxChunk   = 1 << 44 // bytes of one physical allocation
	maxCount   = 1<<31 - 1
)

// bound collects the first violation of one message.
type bound struct{ err error }

func (b *bound) fail(field, format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf("%w: %s: %s", handoff.ErrBound, field, fmt.Sprintf(format, args...))
	}
}

func (b *bound) text(field, s string, limit int) string {
	switch {
	case len(s) > limit:
		b.fail(field, "%d bytes, at most %d", len(s), limit)
	case !utf8.ValidString(s):
		b.fail(field, "not UTF-8")
	default:
		return s
	}
	return ""
}

func (b *bound) str(field, s string) string { return b.text(field, s, MaxString) }

func (b *bound) num(field string, v, lo, hi int32) int32 {
	if v < lo || v > hi {
		b.fail(field, "%d: want %d to %d", v, lo, hi)
		return 0
	}
	return v
}

func (b *bound) count(field string, v int32) int32 { return b.num(field, v, 0, maxCount) }
func (b *bound) slot(field string, v int32) int32  { return b.num(field, v, -1, maxCount) }

// part is a part's number: parts are counted one by one, so it bounds how many are kept.
func (b *bound) part(field string, v uint32) uint32 {
	if v > MaxParts {
		b.fail(field, "%d, at most %d", v, MaxParts)
	}
	return v
}

func (b *bound) rank(field string, v layout.Rank) int32 {
	return b.num(field, int32(v), 0, MaxRanks-1)
}

func (b *bound) bytes64(field string, v int64) int64 {
	if v < 0 {
		b.fail(field, "%d: want at least 0", v)
		return 0
	}
	return v
}

func (b *bound) dur(field string, d time.Duration) time.Duration {
	if d < 0 || d > maxHold {
		b.fail(field, "%v: want 0 to %v", d, time.Duration(maxHold))
		return 0
	}
	return d
}

// list checks the length of s. It returns nil for an empty or a refused one.
func list[T any](b *bound, field string, s []T, limit int) []T {
	if len(s) > limit {
		b.fail(field, "%d elements, at most %d", len(s), limit)
		return nil
	}
	if len(s) == 0 {
		return nil
	}
	return s
}

// clone is list with a copy, for encoding.
func clone[T any](b *bound, field string, s []T, limit int) []T {
	return slices.Clone(list(b, field, s, limit))
}

// each maps a checked list, one element at a time.
func each[A, B any](b *bound, field string, s []A, limit int, f func(*bound, A) B) []B {
	s = list(b, field, s, limit)
	if s == nil {
		return nil
	}
	out := make([]B, len(s))
	for i, v := range s {
		if out[i] = f(b, v); b.err != nil {
			return nil
		}
	}
	return out
}

// enum checks that v is lo to hi.
func enum[E ~int32 | ~uint8](b *bound, field string, v, lo, hi E) E {
	if v < lo || v > hi {
		b.fail(field, "%d: want %d to %d", v, lo, hi)
		return 0
	}
	return v
}

// sum encodes a digest or key: nil when it is zero.
func sum[A ~[16]byte | ~[32]byte](v A) []byte {
	var zero A
	if v == zero {
		return nil
	}
	out := make([]byte, len(v))
	for i := range len(v) {
		out[i] = v[i]
	}
	return out
}

func (b *bound) digest(field string, p []byte) (d handoff.Digest) {
	if len(p) != 0 && len(p) != len(d) {
		b.fail(field, "%d bytes, want %d", len(p), len(d))
		return d
	}
	copy(d[:], p)
	return d
}

func (b *bound) key(field string, p []byte) (k handoff.Key) {
	if len(p) != 0 && len(p) != len(k) {
		b.fail(field, "%d bytes, want %d", len(p), len(k))
		return k
	}
	copy(k[:], p)
	return k
}

// done returns m unless a bound was broken or m is too large to travel.
func done[M proto.Message](b *bound, m M) (M, error) {
	var none M
	if b.err != nil {
		return none, b.err
	}
	if n := proto.Size(m); n > MaxMessage {
		return none, fmt.Errorf("%w: message: %d bytes, at most %d", handoff.ErrBound, n, MaxMessage)
	}
	return m, nil
}
