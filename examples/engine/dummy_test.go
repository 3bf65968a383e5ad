package engine_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/transfer/layout"
)

// slotParts are the elements that a rank has of per-request state in one slot.
func slotParts(s *session, slot int32) (out [][]byte) {
	for _, sh := range s.attach.Shards {
		st := s.attach.Model.Layout.States[sh.State]
		if st.Paging != layout.PerRequest {
			continue
		}
		for l := sh.Box.Layers.Lo; l < sh.Box.Layers.Hi; l++ {
			for u := sh.Box.Units.Lo; u < sh.Box.Units.Hi; u++ {
				for row := range sh.Rows {
					at := cell(s, sh, st, nil, slot, l, u, row)
					for e := range int64(st.Elems) {
						out = append(out, s.mem[sh.View.Buffer][at+e*sh.View.Elem:][:sh.DType.Size()])
					}
				}
			}
		}
	}
	return out
}

// TestDummySlot: with every request's slot held by a hand-off, a step without requests
// still computes a row, in a slot that is no request's, and touches no other.
func TestDummySlot(t *testing.T) {
	m := model.HybridMoE(1)
	w := newWorld(t)
	cfg := splitConfig(m, "prefill", model.Split{TP: 2, EP: 2})
	src := launch(t, w, cfg)[0]
	dst := launch(t, w, splitConfig(m, "decode", model.Split{PP: 2}))[0]
	ranks := w.groups["prefill"].sessions
	countsDummies(t, cfg, ranks)
	var manifests []front.Result
	for i := range int(cfg.Slots) {
		_, res, err := ask(t, src, front.Request{Tokens: prompt(20+i, 0, i), MaxNew: newTokens, Mode: front.Export, Label: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		manifests = append(manifests, res)
	}
	var before [][]byte
	for _, s := range ranks {
		for slot := range cfg.Slots {
			before = append(before, bytes.Join(slotParts(s, slot), nil))
		}
		for _, e := range slotParts(s, cfg.Slots) {
			copy(e, mark)
		}
	}
	// A request that finds no slot makes a step that computes nothing, and waits.
	late, err := src.Submit(t.Context(), front.Request{Tokens: prompt(29, 0, 9), MaxNew: newTokens, Mode: front.Full})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second is answered after a step that followed the first
		_, res, err := ask(t, src, front.Request{Mode: front.Stats})
		if err != nil || res.Pool.FreeSlots != 0 || res.Pool.Exports != cfg.Slots {
			t.Fatalf("%+v %v", res.Pool, err)
		}
	}
	for i, s := range ranks {
		dummy := slotParts(s, cfg.Slots)
		if len(dummy) == 0 || slices.ContainsFunc(dummy, func(e []byte) bool { return bytes.Equal(e, mark) }) {
			t.Errorf("rank %d computed no row in its dummy slot", s.rank)
		}
		for slot := range cfg.Slots {
			if !bytes.Equal(bytes.Join(slotParts(s, slot), nil), before[i*int(cfg.Slots)+int(slot)]) {
				t.Errorf("rank %d: a row that is nobody's changed slot %d", s.rank, slot)
			}
		}
	}
	for i, man := range manifests {
		tokens := prompt(20+i, 0, i)
		got, _, err := ask(t, dst, front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Import, Label: fmt.Sprint(i), Manifest: man.Manifest})
		if want := reference(t, cfg, tokens, newTokens); err != nil || !slices.Equal(got, want) {
			t.Errorf("hand-off %d: %v %v, want %v", i, got, err, want)
		}
	}
	if got, err := drain(late); err != nil || !slices.Equal(got, reference(t, cfg, prompt(29, 0, 9), newTokens)) {
		t.Errorf("the request that waited: %v %v", got, err)
	}
}

// mark is a number that no element of a row is: an idle engine may be at its dummy row
// when a test writes it.
var mark = []byte{0x3e, 0x3e, 0x3e, 0x3e}

// countsDummies: memory has one block and one slot more than capacity says.
func countsDummies(t *testing.T, cfg engine.Config, ranks []*session) {
	for _, s := range ranks {
		for _, sh := range s.attach.Shards {
			want := cfg.Blocks + 1
			if s.attach.Model.Layout.States[sh.State].Paging == layout.PerRequest {
				want = cfg.Slots + 1
			}
			if sh.Items != want || s.attach.Capacity.Blocks != cfg.Blocks || s.attach.Capacity.Slots != cfg.Slots {
				t.Fatalf("rank %d: state %d has %d items, want %d; %+v", s.rank, sh.State, sh.Items, want, s.attach.Capacity)
			}
		}
	}
}
