// Package offers is what wires keep of the chunks that peers may fetch: the same book and the
// same answers, whatever brings the bytes.
package offers

import (
	"fmt"
	"sync"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
)

// Status is the answer to a request, and its number on the wires.
type Status uint32

const (
	Good   Status = iota
	Other         // another wire mover serves here
	Closed        // no such offer: withdrawn, or never made
	Length        // the offer has another length
	Skew          // another version of the wire's protocol
)

var words = map[Status]string{Other: "another wire mover serves there", Closed: "it offers no such chunk",
	Length: "the chunk has another length", Skew: "it speaks another version: use one release of baton on both hosts"}

// Known reports whether s is one of the above.
func (s Status) Known() bool { return s <= Skew }

// Refusal is the error of a status that is not Good: an ErrPeer.
func (s Status) Refusal() error { return fmt.Errorf("%w: %s", transfer.ErrPeer, words[s]) }

// Book has the offers of one arena, which is the caller's. It implements that part of
// staged.Wire. Safe for concurrent use.
type Book struct {
	arena []byte
	size  int64 // bytes of a chunk

	mu   sync.Mutex
	open map[uint64]staged.Exposed
}

// New is a book without offers, of chunks of so many bytes.
func New(arena []byte, chunk int64) *Book {
	return &Book{arena: arena, size: chunk, open: map[uint64]staged.Exposed{}}
}

// Chunk is the first n bytes of a chunk. ErrBounds: it has fewer, or is none.
func (b *Book) Chunk(chunk int32, n int64) ([]byte, error) {
	at := int64(chunk) * b.size
	if chunk < 0 || n < 1 || n > b.size || at+b.size > int64(len(b.arena)) {
		return nil, fmt.Errorf("%w: %d bytes of chunk %d", transfer.ErrBounds, n, chunk)
	}
	return b.arena[at : at+n : at+n], nil
}

// Offer implements staged.Wire.
func (b *Book) Offer(o staged.Exposed) error {
	if _, err := b.Chunk(o.Chunk, o.Bytes); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[o.Offer] = o
	return nil
}

// Withdraw implements staged.Wire.
func (b *Book) Withdraw(offer uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, offer)
}

// Asked is the chunk that a request of so many bytes of an offer may have, or why there is
// none.
func (b *Book) Asked(offer uint64, bytes int64) (int32, Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch o, ok := b.open[offer]; {
	case !ok:
		return 0, Closed
	case o.Bytes != bytes:
		return 0, Length
	default:
		return o.Chunk, Good
	}
}
