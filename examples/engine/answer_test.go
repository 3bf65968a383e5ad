package engine_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/sidecar/handoff"
)

// answer runs a request to its end and gives what its caller sees.
func answer(t testing.TB, r *engine.Rank, req front.Request) (w engine.Wanted, res front.Result, err error) {
	events, err := r.Submit(t.Context(), req)
	if err != nil {
		return w, res, err
	}
	return collect(events)
}

func collect(events <-chan front.Event) (w engine.Wanted, res front.Result, err error) {
	for ev := range events {
		switch {
		case ev.Err != nil:
			return w, res, ev.Err
		case ev.Result != nil:
			w.Reason, w.Drafted, w.Accepted = sample.Reason(ev.Result.Reason), ev.Result.Drafted, ev.Result.Accepted
			return w, *ev.Result, nil
		}
		w.Tokens = append(w.Tokens, ev.Token)
		if ev.Logprob != nil {
			w.Logprobs = append(w.Logprobs, *ev.Logprob)
		}
	}
	return w, res, errors.New("events ended")
}

// wanted is what one engine gives, as a caller sees it.
func wanted(t testing.TB, cfg engine.Config, req front.Request) engine.Wanted {
	req.Mode, req.Label = front.Full, ""
	w, err := engine.ReferenceAnswer(t.Context(), cfg, cfg.Types, req)
	if err != nil {
		t.Fatal(err)
	}
	if !req.Sample.Logprobs {
		w.Logprobs = nil
	}
	return w
}

func same(a, b engine.Wanted) bool {
	return reflect.DeepEqual(a, b)
}

// carry hands one request over and gives the answer that decode makes.
func carry(t testing.TB, src, dst *engine.Rank, req front.Request, label string) (engine.Wanted, front.Result) {
	t.Helper()
	out := req
	out.Mode, out.Label, out.Answer = front.Export, label, 0
	_, res, err := answer(t, src, out)
	if err != nil {
		t.Fatalf("export %s: %v", label, err)
	}
	return bring(t, dst, req, label, res.Manifest)
}

func bring(t testing.TB, dst *engine.Rank, req front.Request, label string, man *handoff.Manifest) (engine.Wanted, front.Result) {
	t.Helper()
	in := front.Request{Tokens: req.Tokens, MaxNew: req.MaxNew, Mode: front.Import, Label: label, Manifest: man, Answer: req.Answer}
	got, res, err := answer(t, dst, in)
	if err != nil {
		t.Fatalf("import %s: %v", label, err)
	}
	return got, res
}

// kinds are the ways to sample that have to go on exactly.
func kinds() map[string]sample.Params {
	return map[string]sample.Params{
		"greedy":   {},
		"logprobs": {Logprobs: true},
		"sampled":  {Seed: 5, Temperature: 1.5, Logprobs: true},
		"cut":      {Seed: 1 << 63, Temperature: 3, TopK: 20, TopP: 0.9},
	}
}

// TestSamplingGoesOn: tokens, logprobs and the reason of the end are those of one engine,
// whatever way they are sampled, and for every place of the last token in its block.
func TestSamplingGoesOn(t *testing.T) {
	for _, m := range []model.Config{model.Hybrid(1), model.Attention(1)} {
		w := newWorld(t)
		src, dst := launch(t, w, config(m, "prefill", 2))[0], launch(t, w, config(m, "decode", 1))[0]
		for name, p := range kinds() {
			for n := 1; n <= 33; n++ { // two blocks and one token: every residue, with and without a block before
				if short() && n%16 > 1 {
					continue
				}
				req := front.Request{Tokens: prompt(n, 0, n), MaxNew: 18, Sample: p} // past the next block boundary
				got, res := carry(t, src, dst, req, fmt.Sprint(name, n))
				if want := wanted(t, config(m, "x", 1), req); !same(got, want) {
					t.Errorf("%s, %s, %d tokens: %+v, want %+v", m.Name, name, n, got, want)
				}
				// The last token is not computed, so it has no row.
				if blocks := int32(n+len(got.Tokens)-1+15) / 16; len(got.Tokens) < 2 || res.Forwarded != 0 || res.Blocks != blocks {
					t.Errorf("%s, %s, %d tokens: %+v, want %d blocks", m.Name, name, n, res, blocks)
				}
			}
		}
	}
}

// TestSampledIsNotGreedy: the tests above would not notice a sampler that is left out.
func TestSampledIsNotGreedy(t *testing.T) {
	cfg, req := config(model.Hybrid(1), "x", 1), front.Request{Tokens: prompt(20, 0, 1), MaxNew: 16}
	seen := [][]int32{wanted(t, cfg, req).Tokens}
	for seed := range uint64(4) {
		req.Sample = sample.Params{Seed: seed, Temperature: 1.5}
		seen = append(seen, wanted(t, cfg, req).Tokens)
	}
	for i, a := range seen {
		for _, b := range seen[i+1:] {
			if slices.Equal(a, b) {
				t.Errorf("two seeds, or one and none, give %v", a)
			}
		}
	}
}

// TestStopWords end an answer wherever the word began, one engine or two; what the prompt
// ends with is no part of one.
func TestStopWords(t *testing.T) {
	m := model.Hybrid(1)
	w := newWorld(t)
	src, dst := launch(t, w, config(m, "prefill", 1))[0], launch(t, w, config(m, "decode", 2))[0]
	base := front.Request{Tokens: prompt(31, 0, 2), MaxNew: 12}
	free := wanted(t, config(m, "x", 1), base).Tokens
	if len(free) != 12 {
		t.Fatal(free)
	}
	for name, c := range map[string]struct {
		word []int32
		want int // tokens of the answer
	}{
		"within decode":            {free[4:7], 7},
		"half on the prefill side": {free[:2], 2},
		"the first token":          {free[:1], 1},
		"at the limit":             {free[9:12], 12},
		"half in the prompt":       {[]int32{base.Tokens[30], free[0]}, 0},
		"never":                    {[]int32{free[3], free[2], free[0], free[1]}, 0},
	} {
		req := base
		req.Sample.Stop = [][]int32{{255, 255}, c.word}
		want := engine.Wanted{Tokens: free[:c.want], Reason: sample.Stop}
		if c.want == 0 {
			want = engine.Wanted{Tokens: free, Reason: sample.Length}
		}
		if got := wanted(t, config(m, "x", 1), req); !same(got, want) {
			t.Errorf("%s: the reference gives %+v, want %+v", name, got, want)
		}
		full := req
		full.Mode = front.Full
		if got, _, err := answer(t, dst, full); err != nil || !same(got, want) {
			t.Errorf("%s: one engine gives %+v %v, want %+v", name, got, err, want)
		}
		if got, res := carry(t, src, dst, req, name); !same(got, want) || res.Forwarded != 0 {
			t.Errorf("%s: %+v %+v, want %+v", name, got, res, want)
		}
	}
}

// TestManyAnswers: one prompt is computed and pinned once, and each of its answers, with a
// stream of its own, is decoded where it is imported. The last import ends the export.
func TestManyAnswers(t *testing.T) {
	const n = 4
	for _, m := range []model.Config{model.Hybrid(1), model.Attention(1)} {
		w := newWorld(t)
		src, dst := launch(t, w, config(m, "prefill", 2))[0], launch(t, w, config(m, "decode", 1))[0]
		req := front.Request{Tokens: prompt(32, 0, 3), MaxNew: 20, Sample: sample.Params{Seed: 2, Temperature: 2, Answers: n, Logprobs: true}}
		out := req
		out.Mode, out.Label = front.Export, "one"
		_, res, err := answer(t, src, out)
		if err != nil || res.Forwarded != 32 {
			t.Fatalf("%+v %v", res, err)
		}
		var first [][]int32
		for i := range int32(n) {
			if free := pools(t, src); free.Exports != 1 {
				t.Errorf("%s: before answer %d: %+v", m.Name, i, free)
			}
			req.Answer = i
			got, dres := bring(t, dst, req, fmt.Sprint("answer ", i), res.Manifest)
			if want := wanted(t, config(m, "x", 1), req); !same(got, want) || dres.Forwarded != 0 {
				t.Errorf("%s: answer %d: %+v %+v, want %+v", m.Name, i, got, dres, want)
			}
			if m.SSMLayers() == 0 && i > 0 && dres.Cached != 32 {
				t.Errorf("%s: answer %d pulls what is there: %+v", m.Name, i, dres)
			}
			first = append(first, got.Tokens)
		}
		if slices.Equal(first[0], first[1]) {
			t.Errorf("%s: the answers are one", m.Name)
		}
		comesTo(t, src, func(p front.Pool) bool { return p.Exports == 0 })
		in := front.Request{Tokens: req.Tokens, MaxNew: 9, Mode: front.Import, Label: "five", Manifest: res.Manifest}
		if _, _, err := answer(t, dst, in); !errors.Is(err, handoff.ErrGone) {
			t.Errorf("%s: a fifth: %v", m.Name, err)
		}
	}
}

func pools(t testing.TB, r *engine.Rank) front.Pool {
	_, res, err := ask(t, r, front.Request{Mode: front.Stats})
	if err != nil {
		t.Fatal(err)
	}
	return *res.Pool
}

// comesTo asks until an engine holds what it should: memory comes back with a step, of
// which there are as many as questions.
func comesTo(t testing.TB, r *engine.Rank, ok func(front.Pool) bool) {
	t.Helper()
	var p front.Pool
	for range 1000 {
		if p = pools(t, r); ok(p) {
			return
		}
	}
	t.Errorf("it still holds %+v", p)
}

// TestHostilePackets: a resume packet that is none fails its import with the reason, takes
// nothing, and the engine goes on.
func TestHostilePackets(t *testing.T) {
	m := model.Hybrid(1)
	w := newWorld(t)
	src, dst := launch(t, w, config(m, "prefill", 1))[0], launch(t, w, config(m, "decode", 2))[0]
	req := front.Request{Tokens: prompt(20, 0, 1), MaxNew: 8, Sample: sample.Params{Seed: 1, Temperature: 1, Answers: 2, Logprobs: true}}
	out := req
	out.Mode, out.Label = front.Export, "a"
	_, res, err := answer(t, src, out)
	if err != nil {
		t.Fatal(err)
	}
	before := pools(t, dst)
	for name, change := range map[string]func(*handoff.Resume){
		"no token":         func(r *handoff.Resume) { r.Tokens = nil },
		"a token outside":  func(r *handoff.Resume) { r.Tokens = []int32{model.Vocab} },
		"a later version":  func(r *handoff.Resume) { r.Sampler = append([]byte{200}, r.Sampler[1:]...) },
		"half a packet":    func(r *handoff.Resume) { r.Sampler = r.Sampler[:9] },
		"no logprob":       func(r *handoff.Resume) { r.Logprobs = nil },
		"a wrong logprob":  func(r *handoff.Resume) { r.Logprobs = []float32{3} },
		"proposals beyond": func(r *handoff.Resume) { r.Tokens = append(slices.Clone(r.Tokens), -1) },
	} {
		man := *res.Manifest
		change(&man.Resume)
		in := front.Request{Tokens: req.Tokens, MaxNew: 8, Mode: front.Import, Label: name, Manifest: &man}
		if _, _, err := answer(t, dst, in); err == nil || !strings.Contains(err.Error(), "bad resume packet") {
			t.Errorf("%s: %v", name, err)
		}
	}
	in := front.Request{Tokens: req.Tokens, MaxNew: 8, Mode: front.Import, Label: "third", Manifest: res.Manifest, Answer: 2}
	if _, _, err := answer(t, dst, in); !errors.Is(err, front.ErrRequest) {
		t.Errorf("answer 2 of 2: %v", err)
	}
	comesTo(t, dst, func(p front.Pool) bool { return p == before })
	req.Answer = 1
	if got, _ := bring(t, dst, req, "good", res.Manifest); !same(got, wanted(t, config(m, "x", 1), req)) {
		t.Errorf("the good one: %+v", got)
	}
}

// TestContinuation: an import takes the blocks of its prompt and those that begin with one
// of the tokens that its resume packet brings, for every place of the last token in its
// block; a finished one takes no more than the prompt's.
func TestContinuation(t *testing.T) {
	for _, c := range []struct {
		m         model.Config
		new       int32
		proposals int // that the packet brings
	}{
		{model.Hybrid(1), 6, 0}, {model.Hybrid(1), 1, -1}, // -1: finished
		{model.MTP(1), 6, 3}, {model.MTP(1), 3, 1}, {model.MTP(1), 2, 0}, {model.MTP(1), 1, -1},
		{model.Attention(1).WithDrafts(8), 10, 8},
	} {
		w := newWorld(t)
		w.took = map[string]handoff.Reserved{}
		src, dst := launch(t, w, config(c.m, "prefill", 1))[0], launch(t, w, config(c.m, "decode", 2))[0]
		for n := 1; n <= 33; n++ {
			if short() && n%16 > 1 {
				continue
			}
			req, label := front.Request{Tokens: prompt(n, 0, n), MaxNew: c.new}, fmt.Sprint(n)
			want := wanted(t, config(c.m, "x", 1), req)
			behind := 1 + c.proposals
			if want.Reason == sample.EOS && len(want.Tokens) == 1 {
				behind = 0
			}
			if got, res := carry(t, src, dst, req, label); !same(got, want) || res.Forwarded != 0 {
				t.Errorf("%s, %d new, %d tokens: %+v %+v, want %+v", c.m.Name, c.new, n, got, res, want)
			}
			w.mu.Lock()
			if got := len(w.took[label].Blocks); got != (n+behind+15)/16 {
				t.Errorf("%s, %d new, %d tokens: %d blocks reserved, want %d", c.m.Name, c.new, n, got, (n+behind+15)/16)
			}
			w.mu.Unlock()
		}
	}
}

// FuzzResume: no packet from another engine breaks this one, and what is taken is bounded.
func FuzzResume(f *testing.F) {
	f.Add([]byte{1, 0}, []byte{5})
	f.Add(sample.Packet{Params: sample.Params{Answers: 2, Logprobs: true}, Last: 4, Others: []sample.First{{Proposed: []int32{1}}}}.Append(nil), []byte{5, 6, 7})
	f.Fuzz(func(t *testing.T, packet, tokens []byte) {
		r := handoff.Resume{Sampler: packet, Logprobs: []float32{-1}}
		for _, b := range tokens {
			r.Tokens = append(r.Tokens, int32(int8(b))*4)
		}
		if n, err := engine.ParseResume(r); err == nil && (n < 1 || n > 1+sample.MaxProposed) {
			t.Fatalf("%d tokens have no state", n)
		}
	})
}
