// Package wiretest is the one suite that every staged.Wire passes.
package wiretest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
)

// End is one side: its Wire and the arena under it.
type End struct {
	Wire  staged.Wire
	ID    staged.Incarnation
	Arena []byte
}

// Make makes an end of so many chunks; the test's cleanup closes it.
type Make func(t testing.TB, chunks int32, chunk int64) End

const (
	chunks = 8
	chunk  = 192 << 10
)

// Run runs the suite.
func Run(t *testing.T, mk Make) {
	for name, f := range map[string]func(*testing.T, Make){
		"moves": moves, "refuses": refuses, "withdrawn": withdrawn, "many at once": many, "peer ends": peerEnds, "close": closes, "bounds": bounds,
	} {
		t.Run(name, func(t *testing.T) { f(t, mk) })
	}
}

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func (e End) chunk(i int32) []byte { return e.Arena[int64(i)*chunk : int64(i+1)*chunk] }

// pair is a source whose chunks hold noise, and a reader.
func pair(t *testing.T, mk Make) (src, dst End) {
	src, dst = mk(t, chunks, chunk), mk(t, chunks, chunk)
	for i := range int32(chunks) {
		fill(src.chunk(i), uint64(i))
	}
	return src, dst
}

// fetch fetches and waits.
func fetch(t *testing.T, w staged.Wire, f staged.Fetching) error {
	t.Helper()
	done := make(chan error, 2) // a second call would show below
	w.Fetch(f, func(err error) { done <- err })
	err := wait(t, done)
	if len(done) > 0 {
		t.Error("done was called twice")
	}
	return err
}

func wait(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-t.Context().Done():
		t.Fatal("the test ended before the fetch")
		return nil
	}
}

func offer(t *testing.T, e End, o staged.Exposed) {
	t.Helper()
	if err := e.Wire.Offer(o); err != nil {
		t.Fatal(err)
	}
}

// moves: exactly the bytes that were offered arrive, and nothing beside them changes.
func moves(t *testing.T, mk Make) {
	src, dst := pair(t, mk)
	before := bytes.Clone(dst.Arena)
	for i, n := range []int64{1, 63, 4096, chunk - 1, chunk} {
		from, into := int32(i), int32(chunks-1-i)
		offer(t, src, staged.Exposed{Offer: uint64(100 + i), Chunk: from, Bytes: n})
		if err := fetch(t, dst.Wire, staged.Fetching{Addr: src.Wire.Addr(), Of: src.ID, Offer: uint64(100 + i), Chunk: into, Bytes: n}); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		copy(before[int64(into)*chunk:], src.chunk(from)[:n])
	}
	if !bytes.Equal(dst.Arena, before) {
		t.Error("the arena does not hold what was offered, and that alone")
	}
}

// refuses: another process, an offer that was never made, another length.
func refuses(t *testing.T, mk Make) {
	src, dst := pair(t, mk)
	offer(t, src, staged.Exposed{Offer: 1, Chunk: 2, Bytes: 4096})
	good := staged.Fetching{Addr: src.Wire.Addr(), Of: src.ID, Offer: 1, Chunk: 0, Bytes: 4096}
	before := bytes.Clone(dst.Arena)
	for name, f := range map[string]func(*staged.Fetching){
		"another wire mover": func(f *staged.Fetching) { f.Of++ },
		"no such offer":      func(f *staged.Fetching) { f.Offer = 2 },
		"too long":           func(f *staged.Fetching) { f.Bytes = 8192 },
		"too short":          func(f *staged.Fetching) { f.Bytes = 64 },
	} {
		bad := good
		f(&bad)
		if err := fetch(t, dst.Wire, bad); !errors.Is(err, transfer.ErrPeer) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !bytes.Equal(dst.Arena, before) {
		t.Error("a refused fetch wrote")
	}
	if err := fetch(t, dst.Wire, good); err != nil {
		t.Errorf("after refusals: %v", err)
	}
}

// withdrawn: no fetch of a withdrawn offer begins, and its number may not come back to life
// by another one.
func withdrawn(t *testing.T, mk Make) {
	src, dst := pair(t, mk)
	f := staged.Fetching{Addr: src.Wire.Addr(), Of: src.ID, Offer: 1, Chunk: 0, Bytes: 4096}
	offer(t, src, staged.Exposed{Offer: 1, Chunk: 2, Bytes: 4096})
	if err := fetch(t, dst.Wire, f); err != nil {
		t.Fatal(err)
	}
	src.Wire.Withdraw(1)
	src.Wire.Withdraw(1) // twice is once
	offer(t, src, staged.Exposed{Offer: 2, Chunk: 2, Bytes: 4096})
	if err := fetch(t, dst.Wire, f); !errors.Is(err, transfer.ErrPeer) {
		t.Errorf("got %v", err)
	}
}

// many: fetches of several peers side by side, each ends once.
func many(t *testing.T, mk Make) {
	src, dst := pair(t, mk)
	second := mk(t, chunks, chunk)
	fill(second.Arena, 99)
	var all sync.WaitGroup
	errs := make(chan error, 64)
	for i := range int32(chunks) {
		from := src
		if i%2 == 1 {
			from = second
		}
		offer(t, from, staged.Exposed{Offer: uint64(i), Chunk: i, Bytes: chunk})
		all.Add(1)
		dst.Wire.Fetch(staged.Fetching{Addr: from.Wire.Addr(), Of: from.ID, Offer: uint64(i), Chunk: i, Bytes: chunk}, func(err error) {
			errs <- err
			all.Done()
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	for i := range int32(chunks) {
		from := src
		if i%2 == 1 {
			from = second
		}
		if !bytes.Equal(dst.chunk(i), from.chunk(i)) {
			t.Errorf("chunk %d: bytes differ", i)
		}
	}
}

// peerEnds: fetches of a peer that is gone fail, and none hangs.
func peerEnds(t *testing.T, mk Make) {
	src, dst := pair(t, mk)
	offer(t, src, staged.Exposed{Offer: 1, Chunk: 2, Bytes: chunk})
	f := staged.Fetching{Addr: src.Wire.Addr(), Of: src.ID, Offer: 1, Chunk: 0, Bytes: chunk}
	if err := fetch(t, dst.Wire, f); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, chunks)
	for i := range int32(chunks) {
		f.Chunk = i
		dst.Wire.Fetch(f, func(err error) { done <- err })
	}
	if err := src.Wire.Close(); err != nil {
		t.Fatal(err)
	}
	for range chunks { // each before or after the end
		if err := wait(t, done); err != nil && !errors.Is(err, transfer.ErrPeer) {
			t.Error(err)
		}
	}
	if err := fetch(t, dst.Wire, f); !errors.Is(err, transfer.ErrPeer) {
		t.Errorf("of a peer that is gone: %v", err)
	}
}

// closes: Close ends what is under way, and nothing begins after it.
func closes(t *testing.T, mk Make) {
	src, dst := pair(t, mk)
	offer(t, src, staged.Exposed{Offer: 1, Chunk: 2, Bytes: chunk})
	f := staged.Fetching{Addr: src.Wire.Addr(), Of: src.ID, Offer: 1, Chunk: 0, Bytes: chunk}
	done := make(chan error, chunks)
	var cancels []func()
	for i := range int32(chunks) {
		f.Chunk = i
		cancels = append(cancels, dst.Wire.Fetch(f, func(err error) { done <- err }))
	}
	for _, c := range cancels[chunks/2:] {
		c()
		c() // twice is once
	}
	if err := dst.Wire.Close(); err != nil {
		t.Fatal(err)
	}
	if len(done) != chunks {
		t.Fatalf("%d of %d fetches had ended when Close returned", len(done), chunks)
	}
	for range chunks {
		if err := <-done; err != nil && !errors.Is(err, transfer.ErrClosed) && !errors.Is(err, transfer.ErrCanceled) {
			t.Error(err)
		}
	}
	if err := fetch(t, dst.Wire, f); !errors.Is(err, transfer.ErrClosed) && !errors.Is(err, transfer.ErrMover) {
		t.Errorf("after Close: %v", err)
	}
}

// bounds: what lies outside an arena is refused on its own side.
func bounds(t *testing.T, mk Make) {
	src, dst := pair(t, mk)
	for _, o := range []staged.Exposed{{Offer: 1, Chunk: chunks, Bytes: 64}, {Offer: 1, Chunk: -1, Bytes: 64}, {Offer: 1, Bytes: chunk + 1}, {Offer: 1}} {
		if err := src.Wire.Offer(o); !errors.Is(err, transfer.ErrBounds) {
			t.Errorf("offer %+v: %v", o, err)
		}
		f := staged.Fetching{Addr: src.Wire.Addr(), Of: src.ID, Offer: 1, Chunk: o.Chunk, Bytes: o.Bytes}
		if err := fetch(t, dst.Wire, f); !errors.Is(err, transfer.ErrBounds) {
			t.Errorf("fetch into %+v: %v", o, err)
		}
	}
}
