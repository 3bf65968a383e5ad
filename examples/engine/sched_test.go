package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/admission"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/handoff"
)

// stepLog keeps what ranks log of their steps.
type stepLog struct {
	rank int64
	into *steps
}

type steps struct {
	mu   sync.Mutex
	rank map[int64][]stepRecord
}

func newStepLog() *stepLog { return &stepLog{into: &steps{rank: map[int64][]stepRecord{}}} }

type stepRecord struct {
	ran                                   string
	n, tokens, prefills, decodes, applied int64
}

func (l *stepLog) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs is told the rank.
func (l *stepLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &stepLog{rank: attrs[0].Value.Int64(), into: l.into}
}

func (l *stepLog) WithGroup(string) slog.Handler { return l }

func (l *stepLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "step" {
		return nil
	}
	var s stepRecord
	r.Attrs(func(a slog.Attr) bool {
		number := map[string]*int64{"n": &s.n, "tokens": &s.tokens, "prefills": &s.prefills, "decodes": &s.decodes, "applied": &s.applied}
		if a.Key == "ran" {
			s.ran = a.Value.String()
		} else if to := number[a.Key]; to != nil {
			if a.Value.Kind() == slog.KindUint64 {
				*to = int64(a.Value.Uint64())
			} else {
				*to = a.Value.Int64()
			}
		}
		return true
	})
	l.into.mu.Lock()
	defer l.into.mu.Unlock()
	l.into.rank[l.rank] = append(l.into.rank[l.rank], s)
	return nil
}

// of are a rank's steps so far.
func (l *stepLog) of(rank int64) []stepRecord {
	l.into.mu.Lock()
	defer l.into.mu.Unlock()
	return slices.Clone(l.into.rank[rank])
}

// computed are those in which it computed something.
func (l *stepLog) computed(rank int64) (out []stepRecord) {
	for _, s := range l.of(rank) {
		if s.tokens > 0 {
			out = append(out, s)
		}
	}
	return out
}

// together gives a group requests of mode Full that it takes in one step, and compares what
// comes with one engine doing each alone.
func together(t *testing.T, cfg engine.Config, reqs ...front.Request) ([]stepRecord, []front.Result) {
	t.Helper()
	log, w := newStepLog(), newWorld(t)
	cfg.Log = slog.New(log)
	r := launch(t, w, cfg)[0]
	w.do(cfg.Group, handoff.ActionPause)
	var events []<-chan front.Event
	for _, req := range reqs {
		req.Mode = front.Full
		ev, err := r.Submit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev)
	}
	freeBlocks(t, r) // all are taken
	w.do(cfg.Group, handoff.ActionUnpause)
	var results []front.Result
	for i, ev := range events {
		got, res, err := drainResult(ev)
		if want := wanted(t, cfg, reqs[i]).Tokens; err != nil || !slices.Equal(got, want) {
			t.Errorf("request %d: %v %v, want %v", i, got, err, want)
		}
		results = append(results, res)
	}
	if free := freeBlocks(t, r); free != cfg.Blocks {
		t.Errorf("%d of %d blocks are free at the end", free, cfg.Blocks)
	}
	return log.computed(0), results
}

// long are n requests whose answers do not end before their limit.
func long(t *testing.T, cfg engine.Config, tokens, maxNew, n int) (reqs []front.Request) {
	for seed := 0; len(reqs) < n; seed++ {
		if seed == 1000 {
			t.Fatal("every answer ends early")
		}
		p := prompt(tokens, 0, seed)
		if len(reference(t, cfg, p, maxNew)) == maxNew {
			reqs = append(reqs, front.Request{Tokens: p, MaxNew: int32(maxNew)})
		}
	}
	return reqs
}

func TestSeveralPromptsInAStep(t *testing.T) {
	cfg := config(model.Attention(1), "g", 1)
	cfg.StepTokens, cfg.Chunk = 64, 24
	var reqs []front.Request
	for i := range 4 {
		reqs = append(reqs, front.Request{Tokens: prompt(30, 0, i), MaxNew: 4})
	}
	steps, _ := together(t, cfg, reqs...)
	// Two chunks of 24 and one of 16 fill the first step's 64 tokens.
	if s := steps[0]; s.tokens != 64 || s.prefills != 3 {
		t.Errorf("the first step: %+v", s)
	}
	for _, s := range steps {
		if s.tokens > 64 || s.tokens > 24*s.prefills+s.decodes {
			t.Errorf("more than a step or a chunk holds: %+v", s)
		}
	}
	if !slices.ContainsFunc(steps, func(s stepRecord) bool { return s.prefills > 0 && s.decodes > 0 }) {
		t.Error("no step has both")
	}
}

// A prompt of many chunks does not hold up what decodes: each step with a chunk has its
// tokens too.
func TestLongPromptBesideDecodes(t *testing.T) {
	cfg := config(model.Hybrid(1), "g", 2)
	cfg.StepTokens, cfg.Chunk = 32, 16
	brief := long(t, cfg, 10, 12, 1)[0]
	steps, _ := together(t, cfg, brief, front.Request{Tokens: prompt(150, 0, 2), MaxNew: 2})
	both := 0
	for _, s := range steps[1:] {
		if s.prefills > 0 && s.decodes > 0 {
			both++
		}
	}
	if both < 9 { // 150 tokens are 10 chunks, the first of them beside the other prompt
		t.Errorf("%d steps have a chunk and a decode: %+v", both, steps)
	}
}

// One token is never left over for a chunk of its own.
func TestNoChunkOfOne(t *testing.T) {
	cfg := config(model.Hybrid(1), "g", 1)
	cfg.Chunk = 16
	steps, _ := together(t, cfg, front.Request{Tokens: prompt(33, 0, 1), MaxNew: 1})
	if len(steps) != 3 || steps[0].tokens != 16 || steps[1].tokens != 15 || steps[2].tokens != 2 {
		t.Errorf("%+v", steps)
	}
}

func TestPreemption(t *testing.T) {
	for _, m := range []model.Config{model.Attention(1), model.Hybrid(1)} {
		cfg := config(m, "g", 2)
		cfg.Blocks = 9
		reqs := long(t, cfg, 30, newTokens, 3) // each begins with two blocks, and ends with four
		reqs[2].Sample.Temperature, reqs[2].Sample.Seed = 1, 7
		_, results := together(t, cfg, reqs...)
		var preempted int32
		for _, res := range results {
			preempted += res.Preempted
		}
		if preempted == 0 || results[0].Preempted > 0 {
			t.Errorf("%s: %+v: want the newest preempted, never the oldest", m.Name, results)
		}
	}
}

func shapes(t *testing.T, s string) []admission.Shape {
	list, err := admission.ParseShapes(s)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A prompt that no captured shape takes beside what decodes waits for it, and every step
// runs by a shape.
func TestShapesWait(t *testing.T) {
	cfg := config(model.Attention(1), "g", 1)
	cfg.Shapes = shapes(t, "16/1/0,4/0/4")
	one := long(t, cfg, 16, 6, 1)[0]
	steps, _ := together(t, cfg, one, front.Request{Tokens: prompt(20, 0, 5), MaxNew: 2})
	var order []string
	for _, s := range steps {
		order = append(order, strings.Fields(s.ran)[0])
		if s.prefills > 0 && s.decodes > 0 || !strings.HasPrefix(s.ran, "[") {
			t.Errorf("%+v", s)
		}
	}
	want := []string{"[16", "[4", "[4", "[4", "[4", "[4", "[16", "[16", "[4"}
	if !slices.Equal(order, want[:len(order)]) || len(order) < 8 {
		t.Errorf("shapes %v, want %v", order, want)
	}
}

// A decode may take a prompt's place in a shape, but not where there is per-request state.
func TestShapesStrict(t *testing.T) {
	for _, m := range []model.Config{model.Attention(1), model.Hybrid(1)} {
		cfg := config(m, "g", 1)
		cfg.Shapes, cfg.Chunk = shapes(t, "32/2/0,4/0/4"), 16
		one := long(t, cfg, 16, 8, 1)[0]
		steps, _ := together(t, cfg, one, front.Request{Tokens: prompt(64, 0, 5), MaxNew: 1})
		mixed := slices.ContainsFunc(steps, func(s stepRecord) bool { return s.prefills > 0 && s.decodes > 0 })
		if want := m.SSMLayers() == 0; mixed != want {
			t.Errorf("%s: prompts beside decodes: %v, want %v: %+v", m.Name, mixed, want, steps)
		}
	}
}

// A request that no shape can ever take is a mistake of the configuration, and fails alone.
func TestShapesNeverFit(t *testing.T) {
	cfg := config(model.Attention(1), "g", 1)
	cfg.Shapes = shapes(t, "4/0/4")
	r := launch(t, nil, cfg)[0]
	for range 2 {
		_, _, err := ask(t, r, front.Request{Tokens: prompt(5, 0, 0), MaxNew: 1, Mode: front.Full})
		if !errors.Is(err, engine.ErrConfig) || !errors.Is(err, admission.ErrShapes) {
			t.Fatal(err)
		}
	}
	if free := freeBlocks(t, r); free != cfg.Blocks {
		t.Errorf("%d blocks are free", free)
	}
}

// What was preempted comes back only where those that run have room to grow: it is not
// preempted over and over.
func TestPreemptedOnce(t *testing.T) {
	cfg := config(model.Attention(1), "g", 1)
	cfg.Blocks = 9
	_, results := together(t, cfg, long(t, cfg, 30, 60, 5)...) // each ends with six blocks
	for i, res := range results {
		if res.Preempted > 1 {
			t.Errorf("request %d was preempted %d times", i, res.Preempted)
		}
	}
}

// A prompt that is to be exported is preempted like any other: its hand-off stays announced,
// and is the same in the end.
func TestPreemptedExport(t *testing.T) { preemptedExport(t, false) }

// preemptedExport has a prompt preempted that is to be exported, with its chunks leaving or
// not, and returns the prefill group.
func preemptedExport(t *testing.T, parts bool) *group {
	w := newWorld(t)
	cfg := config(model.Attention(1), "prefill", 2)
	cfg.Blocks, cfg.Chunk, cfg.ExportParts = 9, 2, parts
	src, dst := launch(t, w, cfg)[0], launch(t, w, config(model.Attention(1), "decode", 1))[0]
	grows := long(t, cfg, 30, 60, 1)[0] // from two blocks to six
	grows.Mode = front.Full
	tokens := prompt(90, 0, 7) // six blocks, and more steps than until the other wants a fourth
	w.do("prefill", handoff.ActionPause)
	var events []<-chan front.Event
	for _, req := range []front.Request{grows, {Tokens: tokens, MaxNew: newTokens, Mode: front.Export, Label: "a"}} {
		ev, err := src.Submit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev)
	}
	freeBlocks(t, src)
	w.do("prefill", handoff.ActionUnpause)
	if got, res, err := drainResult(events[0]); err != nil || res.Preempted > 0 || !slices.Equal(got, reference(t, cfg, grows.Tokens, 60)) {
		t.Errorf("what decodes: %v %+v %v", got, res, err)
	}
	_, res, err := drainResult(events[1])
	if err != nil || res.Preempted != 1 || res.Manifest == nil {
		t.Fatalf("the export: %+v %v", res, err)
	}
	got, _ := bring(t, dst, front.Request{Tokens: tokens, MaxNew: newTokens}, "a", res.Manifest)
	if want := reference(t, cfg, tokens, newTokens); !slices.Equal(got.Tokens, want) {
		t.Errorf("the hand-off: %v, want %v", got, want)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.errs) > 0 {
		t.Error(w.errs)
	}
	return w.groups["prefill"]
}
