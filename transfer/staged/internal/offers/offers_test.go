package offers

import (
	"errors"
	"testing"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
)

func TestBook(t *testing.T) {
	b := New(make([]byte, 3*8+4), 8) // the rest is no chunk
	for _, o := range []staged.Exposed{{Chunk: -1, Bytes: 1}, {Chunk: 3, Bytes: 1}, {Chunk: 0, Bytes: 9}, {Chunk: 0, Bytes: 0}} {
		if err := b.Offer(o); !errors.Is(err, transfer.ErrBounds) {
			t.Errorf("%+v: got %v", o, err)
		}
	}
	if err := b.Offer(staged.Exposed{Offer: 7, Chunk: 2, Bytes: 5}); err != nil {
		t.Fatal(err)
	}
	asked := func(offer uint64, bytes int64, chunk int32, want Status) {
		t.Helper()
		if c, s := b.Asked(offer, bytes); c != chunk || s != want {
			t.Errorf("offer %d of %d bytes: got %d, %d, want %d, %d", offer, bytes, c, s, chunk, want)
		}
	}
	asked(7, 5, 2, Good)
	asked(7, 4, 0, Length)
	asked(8, 5, 0, Closed)
	b.Withdraw(7)
	asked(7, 5, 0, Closed)
	for s := Other; s.Known(); s++ {
		if words[s] == "" || !errors.Is(s.Refusal(), transfer.ErrPeer) {
			t.Errorf("status %d: %v", s, s.Refusal())
		}
	}
}
