package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/transfer/layout"
)

// TestDraftsGoOn: with drafts, tokens and logprobs are those of single steps, on one
// engine and across a hand-off, and as many drafts are made and come true as there.
func TestDraftsGoOn(t *testing.T) {
	drafted, accepted := int32(0), int32(0)
	for i, c := range []struct {
		m        model.Config
		src, dst model.Split
	}{
		{model.MTP(1), model.Split{TP: 2}, model.Split{TP: 1}},
		{model.MTP(3), model.Split{TP: 1, PP: 2}, model.Split{TP: 2, PP: 2, Layers: []int{4, 1}}},
		{model.Attention(1).WithDrafts(1), model.Split{TP: 1}, model.Split{TP: 4}},
		{model.MLA(1).WithDrafts(8), model.Split{TP: 2}, model.Split{TP: 1}},
		{model.SWA(1).WithDrafts(2), model.Split{TP: 1, PP: 5}, model.Split{TP: 2}},
	} {
		if short() && i%2 == 1 {
			continue
		}
		w := newWorld(t)
		src, dst := launch(t, w, splitConfig(c.m, "prefill", c.src))[0], launch(t, w, splitConfig(c.m, "decode", c.dst))[0]
		for name, p := range kinds() {
			if name == "logprobs" { // and "sampled" has them too
				continue
			}
			for _, n := range lengths() {
				req := front.Request{Tokens: prompt(n, 0, n), MaxNew: 30, Sample: p}
				want := wanted(t, config(c.m, "x", 1), req)
				drafted, accepted = drafted+want.Drafted, accepted+want.Accepted
				label := fmt.Sprintf("%s, %s, %d tokens", c.m.Name, name, n)
				if got, res := carry(t, src, dst, req, label); !same(got, want) || res.Forwarded != 0 {
					t.Errorf("%s: %+v %+v, want %+v", label, got, res, want)
				}
				if n != 17 {
					continue
				}
				full := req
				full.Mode = front.Full
				if got, _, err := answer(t, src, full); err != nil || !same(got, want) {
					t.Errorf("%s: one engine: %+v %v, want %+v", label, got, err, want)
				}
			}
		}
	}
	least := int32(20)
	if short() {
		least = 2
	}
	if accepted < least || accepted > drafted/2 {
		t.Errorf("%d of %d drafts come true: both ways have to be gone", accepted, drafted)
	}
}

// TestDraftsOfAHandOff: whatever a packet proposes, none to all of it true, the answer is
// that of single steps; a recurrent state takes back what was not.
func TestDraftsOfAHandOff(t *testing.T) {
	const most = 8
	for _, m := range []model.Config{model.Hybrid(1).WithDrafts(most), model.SWA(2).WithDrafts(most)} {
		w := newWorld(t)
		src, dst := launch(t, w, config(m, "prefill", 1))[0], launch(t, w, config(m, "decode", 2))[0]
		for right := range most + 1 {
			for _, limit := range []int32{30, 5} { // a limit cuts drafts off
				req := front.Request{Tokens: prompt(14, 0, right), MaxNew: limit, Sample: sample.Params{Seed: 7, Temperature: 0.7, Logprobs: true}}
				want := wanted(t, config(m, "x", 1), req)
				out, label := req, fmt.Sprintf("%s, %d right of %d, %d new", m.Name, right, most, limit)
				out.Mode, out.Label = front.Export, label
				_, res, err := answer(t, src, out)
				if err != nil {
					t.Fatal(err)
				}
				tokens := slices.Clone(want.Tokens[:min(right+1, len(want.Tokens))])
				for len(tokens) <= most {
					next := int32(1)
					if len(tokens) < len(want.Tokens) && want.Tokens[len(tokens)] == 1 {
						next = 2
					}
					tokens = append(tokens, next)
				}
				res.Manifest.Resume.Tokens = tokens
				got, _ := bring(t, dst, req, label, res.Manifest)
				if !slices.Equal(got.Tokens, want.Tokens) || !slices.Equal(got.Logprobs, want.Logprobs) || got.Accepted < min(int32(right), limit-2) {
					t.Errorf("%s: %+v, want %+v", label, got, want)
				}
			}
		}
	}
}

// TestDraftsOfManyAnswers: each answer of a prompt brings drafts of its own.
func TestDraftsOfManyAnswers(t *testing.T) {
	m := model.MTP(1)
	w := newWorld(t)
	src, dst := launch(t, w, config(m, "prefill", 1))[0], launch(t, w, config(m, "decode", 2))[0]
	req := front.Request{Tokens: prompt(31, 0, 3), MaxNew: 20, Sample: sample.Params{Seed: 2, Temperature: 2, Answers: 3}}
	out := req
	out.Mode, out.Label = front.Export, "one"
	_, res, err := answer(t, src, out)
	if err != nil {
		t.Fatal(err)
	}
	for i := range req.Sample.Answers {
		req.Answer = i
		if got, _ := bring(t, dst, req, fmt.Sprint("answer ", i), res.Manifest); !same(got, wanted(t, config(m, "x", 1), req)) {
			t.Errorf("answer %d: %+v", i, got)
		}
	}
}

// TestDraftLayerIsMoved: the draft layer's rows are part of the state. Damage to them
// changes what is drafted and no token, and rows that never came are noticed.
func TestDraftLayerIsMoved(t *testing.T) {
	m := model.MTP(1)
	hand := func(label string, seed int, damage func(bf16 []byte)) (got, want engine.Wanted, err error) {
		w := newWorld(t)
		w.spoil = func(st layout.State, layer int32, element []byte) {
			if st.Name == "attn.v" && layer == st.Layers-1 {
				damage(element)
			}
		}
		src, dst := launch(t, w, config(m, "prefill", 2))[0], launch(t, w, config(m, "decode", 1))[0]
		req := front.Request{Tokens: prompt(70, 0, seed), MaxNew: 40}
		out, in := req, req
		out.Mode, out.Label = front.Export, label
		_, res, err := answer(t, src, out)
		if err != nil {
			t.Fatal(err)
		}
		in.Mode, in.Label, in.Manifest = front.Import, label, res.Manifest
		got, _, err = answer(t, dst, in)
		return got, wanted(t, config(m, "x", 1), req), err
	}
	shows := false
	for seed := 1; seed <= 12 && !shows; seed++ {
		got, want, err := hand("turned", seed, func(b []byte) { b[1] ^= 0x80 })
		if err != nil || !slices.Equal(got.Tokens, want.Tokens) {
			t.Fatalf("turned: %+v %v, want %+v", got, err, want)
		}
		shows = got.Drafted != want.Drafted || got.Accepted != want.Accepted
	}
	if !shows {
		t.Error("turned: it does not show")
	}
	if got, _, err := hand("left out", 1, func(b []byte) { b[0], b[1] = 0xff, 0x7f }); !errors.Is(err, model.ErrState) { // no number, as poison
		t.Errorf("left out: %+v %v", got, err)
	}
}

// TestDraftsOfACachedPrefix: rows that the cache has, on either side, draft alike.
func TestDraftsOfACachedPrefix(t *testing.T) {
	m := model.Attention(1).WithDrafts(3)
	w := newWorld(t)
	src, dst := launch(t, w, config(m, "prefill", 1))[0], launch(t, w, config(m, "decode", 2))[0]
	for i := range 3 {
		req := front.Request{Tokens: prompt(60, 32, i), MaxNew: 40}
		got, res := carry(t, src, dst, req, fmt.Sprint(i))
		if want := wanted(t, config(m, "x", 1), req); !same(got, want) || i > 0 && res.Cached != 32 {
			t.Errorf("prompt %d: %+v %+v, want %+v", i, got, res, want)
		}
	}
}

// TestDraftsNeedNoRoom: where a pool has no block for drafts an answer goes on without.
func TestDraftsNeedNoRoom(t *testing.T) {
	m := model.MTP(1)
	w := newWorld(t)
	tight := config(m, "prefill", 1)
	tight.Blocks = 2 // 32 tokens: not one row behind the prompt
	src, dst := launch(t, w, tight)[0], launch(t, w, config(m, "decode", 1))[0]
	req := front.Request{Tokens: prompt(32, 0, 1), MaxNew: 10}
	want := wanted(t, config(m, "x", 1), req)
	if got, _ := carry(t, src, dst, req, "export"); !slices.Equal(got.Tokens, want.Tokens) || got.Drafted >= want.Drafted {
		t.Errorf("an export: %+v, want %+v", got, want)
	}
	req = front.Request{Tokens: prompt(12, 0, 1), MaxNew: 21, Mode: front.Full} // the last token has no row
	want = wanted(t, config(m, "x", 1), req)
	if got, _, err := answer(t, src, req); err != nil || !same(got, want) {
		t.Errorf("to the last row: %+v %v, want %+v", got, err, want)
	}
}

// TestDraftsComputedAnew: an answer that gave its memory back goes on as it was: with its
// drafts, its stream and its stop words.
func TestDraftsComputedAnew(t *testing.T) {
	m := model.MTP(1)
	c := config(m, "g", 2)
	c.Blocks, c.Slots = 8, 4
	r := launch(t, nil, c)[0]
	var events []<-chan front.Event
	req := func(i int) front.Request {
		return front.Request{Tokens: prompt(20, 0, i), MaxNew: 40, Mode: front.Full,
			Sample: sample.Params{Seed: uint64(i), Temperature: 0.8, Logprobs: true}}
	}
	for i := range 4 {
		ev, err := r.Submit(t.Context(), req(i))
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev)
	}
	preempted := int32(0)
	for i, ch := range events {
		got, res, err := collect(ch)
		want := wanted(t, config(m, "x", 1), req(i))
		if err != nil || !slices.Equal(got.Tokens, want.Tokens) || !slices.Equal(got.Logprobs, want.Logprobs) {
			t.Errorf("%d: %+v %v, want %+v", i, got, err, want)
		}
		preempted += res.Preempted
	}
	if preempted == 0 {
		t.Error("nobody was preempted")
	}
}
