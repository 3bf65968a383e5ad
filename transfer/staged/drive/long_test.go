package drive_test

import (
	"testing"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/pack"
)

// long is a prompt of 191,000 tokens: 186 MiB for a reader of half its heads.
var long = shape{parallel.Desc{Attention: &parallel.Attention{Layers: 4, Heads: 4, Dim: 64}}, 2999, 64, layout.Span{Hi: 191_000}}

// TestLongStream: a request streams through arenas of 64 MiB, half of it for each direction,
// which hold little of it, and every byte lands.
func TestLongStream(t *testing.T) {
	const chunks, chunk = 8, 4 << 20
	s := long
	if testing.Short() {
		s.tokens.Hi, s.blocks = 64_000, 1009
	}
	p := newPairOf(t, s, chunks, chunk, chunk)
	p.pull(1)
	if r := p.wait(t); r.err != nil || r.bytes != p.plan.Bytes(p.index(), p.tokens.Len()) || r.bytes < 2*chunks*chunk-chunk {
		t.Fatalf("%d bytes, %v", r.bytes, r.err)
	}
	p.landed(t)
	p.quiet(t)
}

// standing is a wire whose fetches wait until the channel is closed; nil: for nothing.
type standing struct {
	staged.Wire
	until chan struct{}
}

func (s *standing) Fetch(f staged.Fetching, done func(error)) (cancel func()) {
	if s.until == nil {
		return s.Wire.Fetch(f, done)
	}
	go func() {
		<-s.until
		s.Wire.Fetch(f, done)
	}()
	return func() {}
}

// TestSlowReader: a reader that stands still holds up nobody but itself, and ends well when
// it goes on.
func TestSlowReader(t *testing.T) {
	p := newPair(t, 4)
	slow := newNode(t, small, "decode/0@3", parallel.Cut{TP: 2}, 0, 4, 0)
	slow.stands = make(chan struct{})
	slow.meets(p.src)
	p.src.meets(slow)
	pull := p.job(1)
	pull.Pair, _ = p.plan.PairOf(0, 0)
	slow.sync(func() {
		slow.stage.Pull(p.src.id, pull, staged.Pin{ID: 5, Generation: 1}, pack.Of(p.plan, pull.Pair), p.own(11, 2), 0)
	})
	for held := int32(0); held < 2; { // all that one peer may hold
		p.src.sync(func() {
			src, _ := p.src.stage.Use()
			held = src.Wire
		})
	}
	for n := range uint64(3) {
		p.wipe()
		p.pull(n + 2)
		if r := p.wait(t); r.err != nil {
			t.Fatal(r.err)
		}
		p.landed(t)
	}
	select {
	case r := <-slow.done:
		t.Fatalf("the slow one has ended: %+v", r)
	default:
	}
	close(slow.stands)
	if r := <-slow.done; r.err != nil {
		t.Error(r.err)
	}
	p.quiet(t)
}
