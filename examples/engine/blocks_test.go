package engine_test

import (
	"math/rand/v2"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/blocks"
	"github.com/batonkv/baton/sidecar/engine/blockhash"
	"github.com/batonkv/baton/sidecar/handoff"
)

// holds are the ids that a session was told of.
func (s *session) holds() map[uint64]bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	ids, r := map[uint64]bool{}, blocks.Reader{}
	for e, ok := s.told.Read(&r); ok; e, ok = s.told.Read(&r) {
		for _, b := range e.Blocks {
			ids[b.ID] = true
		}
	}
	return ids
}

// finds is how many leading tokens of a prompt are told to be cached.
func (s *session) finds(t *testing.T, tokens []int32) (n int32) {
	size := s.attach.Capacity.BlockTokens
	hashes, err := blockhash.Hashes(tokens, size, blockhash.For(s.attach.Model, s.attach.Weights, handoff.Salt{}))
	if err != nil {
		t.Fatal(err)
	}
	held := s.holds()
	for _, h := range hashes {
		if !held[h] {
			break
		}
		n += size
	}
	return n
}

// TestToldBlocksAreFound: in a pool that evicts all the time, what a prompt finds is what was
// told before it came; a reset is told, and an import is.
func TestToldBlocksAreFound(t *testing.T) {
	w := newWorld(t)
	cfg := config(model.Attention(1), "prefill", 1)
	r, to := launch(t, w, cfg)[0], config(model.Attention(1), "decode", 1)
	d := launch(t, w, to)[0]
	src, dst := w.groups["prefill"].sessions[0], w.groups["decode"].sessions[0]
	random := rand.New(rand.NewPCG(1, 2))
	found, missed := 0, 0
	for range 60 {
		p := prompt(33+random.IntN(130), 16*random.IntN(8), 1+random.IntN(3))
		want := min(src.finds(t, p), int32(len(p)-1)/16*16)
		_, res, err := ask(t, r, front.Request{Tokens: p, MaxNew: 1, Mode: front.Full})
		if err != nil || res.Cached != want {
			t.Fatalf("%d tokens: %d are cached, %d were told, %v", len(p), res.Cached, want, err)
		}
		if want > 0 {
			found++
		} else {
			missed++
		}
		if n := len(src.holds()); n == 0 || n > int(cfg.Blocks) {
			t.Fatalf("%d blocks are told", n)
		}
	}
	if found == 0 || missed < 4 {
		t.Errorf("%d prompts found something, %d nothing: that says little", found, missed)
	}
	p := prompt(70, 0, 9)
	_, res, err := ask(t, r, front.Request{Tokens: p, MaxNew: newTokens, Mode: front.Export, Label: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := ask(t, d, front.Request{Tokens: p, MaxNew: newTokens, Mode: front.Import, Label: "a", Manifest: res.Manifest}); err != nil || dst.finds(t, p) != 64 {
		t.Errorf("an import: %d tokens are told, %v", dst.finds(t, p), err)
	}
	for s, r := range map[*session]*engine.Rank{src: r, dst: d} {
		if _, _, err := ask(t, r, front.Request{Mode: front.Reset}); err != nil || len(s.holds()) != 0 {
			t.Errorf("%d blocks are told after a reset, %v", len(s.holds()), err)
		}
	}
}
