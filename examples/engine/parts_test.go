package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/handoff"
)

// part takes what a rank says of a prompt that it computes.
func (w *world) part(s *session, m handoff.ExportPart) {
	if w.endParts > 0 && s.rank == 0 {
		if w.endParts--; w.endParts == 0 {
			w.free(s.g, m.Label)
			w.ended = m.Label
		}
	}
	if w.ended == m.Label {
		return // Free is on its way
	}
	if s.g.parts == nil {
		s.g.parts = map[string][][]handoff.ExportPart{}
	}
	if s.g.parts[m.Label] == nil {
		s.g.parts[m.Label] = make([][]handoff.ExportPart, len(s.g.sessions))
	}
	ps := &s.g.parts[m.Label][s.rank]
	if *ps = append(*ps, m); m.Part != uint32(len(*ps)) || !m.Reach.Within(m.Tokens) || len(*ps) > 1 && !m.Reach.Follows((*ps)[len(*ps)-2].Reach) {
		w.errs = append(w.errs, fmt.Errorf("rank %d says part %d of %q after %d, reach %v", s.rank, m.Part, m.Label, len(*ps)-1, m.Reach))
	}
}

// closes compares an export with what its rank said of parts.
func (w *world) closes(s *session, m handoff.Export) {
	var said []handoff.ExportPart
	if ps := s.g.parts[m.Label]; ps != nil {
		said = ps[s.rank]
	}
	var blocks []int32
	for _, p := range said {
		blocks = append(blocks, p.Blocks...)
	}
	if m.Parts != uint32(len(said)) || len(blocks) > len(m.Blocks) || !slices.Equal(blocks, m.Blocks[:len(blocks)]) {
		w.errs = append(w.errs, fmt.Errorf("rank %d exports %q after %d parts, which had blocks %v, as %+v", s.rank, m.Label, len(said), blocks, m))
	}
	if s.g.parts[m.Label] != nil && s.rank == 0 {
		s.g.partly++
	}
}

// TestParts: chunks leave in order on every rank, the table that importers know stays, also
// where another prompt has the same blocks, and the tokens are the same in the end.
func TestParts(t *testing.T) {
	for _, m := range []model.Config{model.Hybrid(1), model.Attention(1)} {
		t.Run(m.Name, func(t *testing.T) {
			w := newWorld(t)
			cfg := config(m, "prefill", 2)
			cfg.Chunk, cfg.ExportParts = 8, true
			src, dst := launch(t, w, cfg)[0], launch(t, w, config(m, "decode", 1))[0]
			tokens := prompt(70, 0, 3)
			want := reference(t, cfg, tokens, newTokens)
			w.do("prefill", handoff.ActionPause)
			var events []<-chan front.Event
			for _, label := range []string{"a", "b"} { // side by side, so that neither finds the other's blocks
				ev, err := src.Submit(t.Context(), front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Export, Label: label})
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, ev)
			}
			freeBlocks(t, src)
			w.do("prefill", handoff.ActionUnpause)
			for i, label := range []string{"a", "b"} {
				_, res, err := drainResult(events[i])
				if err != nil || res.Manifest == nil {
					t.Fatalf("%s: %+v %v", label, res, err)
				}
				got, _ := bring(t, dst, front.Request{Tokens: tokens, MaxNew: newTokens}, label, res.Manifest)
				if !slices.Equal(got.Tokens, want) {
					t.Errorf("%s: %v, want %v", label, got.Tokens, want)
				}
			}
			handOff(t, src, dst, "short", prompt(5, 0, 1)) // of one chunk: it leaves whole
			w.mu.Lock()
			defer w.mu.Unlock()
			if n := w.groups["prefill"].partly; len(w.errs) > 0 || n != 2 {
				t.Errorf("%d exports closed parts: %v", n, w.errs)
			}
		})
	}
}

// TestPreemptedParts: of a prompt that is preempted what importers read is given up, and it
// leaves whole.
func TestPreemptedParts(t *testing.T) {
	if g := preemptedExport(t, true); g.partly > 0 || g.n == 0 {
		t.Errorf("%d exports closed parts, after %d decisions", g.partly, g.n)
	}
}

// TestPartsEnd: what the sidecars end while the prompt is computed leaves whole afterwards;
// a caller who leaves gives it up, and the memory comes back.
func TestPartsEnd(t *testing.T) {
	w := newWorld(t)
	cfg := config(model.Hybrid(1), "prefill", 2)
	cfg.Chunk, cfg.ExportParts = 4, true
	src, dst := launch(t, w, cfg)[0], launch(t, w, config(model.Hybrid(1), "decode", 1))[0]
	w.endParts = 3
	tokens := prompt(70, 0, 3)
	got, _ := handOff(t, src, dst, "a", tokens)
	if want := reference(t, cfg, tokens, newTokens); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	w.mu.Lock()
	if g := w.groups["prefill"]; len(w.errs) > 0 || g.partly > 0 || w.endParts != 0 {
		t.Errorf("%d exports closed parts, %d parts to go: %v", g.partly, w.endParts, w.errs)
	}
	w.mu.Unlock()
	leaves(t, src, cfg.Blocks)
}

// leaves has a caller leave while its prompt is computed, and waits until all blocks are free.
func leaves(t *testing.T, src *engine.Rank, blocks int32) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	ev, err := src.Submit(ctx, front.Request{Tokens: prompt(300, 0, 9), MaxNew: newTokens, Mode: front.Export, Label: "left"})
	if err != nil {
		t.Fatal(err)
	}
	freeBlocks(t, src)
	leave()
	if _, _, err := drainResult(ev); err == nil {
		t.Error("who left is answered")
	}
	for freeBlocks(t, src) < blocks {
	}
}
