package load

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/batonkv/baton/transfer/layout"
)

func config(m Model, order string, rank, tp int) Config {
	return Config{Group: "g", Instance: 1, Rank: rank, TP: tp, Model: m, Order: order, Blocks: 8, Slots: 3, BlockTokens: 4}
}

// TestPatternIsTheTokens: whatever the layout, a check finds the state that was written,
// and finds one element that is another's, one that was never written, and one row that
// belongs to other tokens or weights.
func TestPatternIsTheTokens(t *testing.T) {
	for order := range orders {
		for _, m := range []Model{Attention, Hybrid} {
			for rank := range 4 {
				r, err := New(config(m, order, rank, 4))
				if err != nil {
					t.Fatal(err)
				}
				p := Prompt{Version: 1, Prefix: 2, Shared: 4, Tail: 3, Len: 10}
				at := items{blocks: []int32{6, 1, 3}, slot: -1}
				if m == Hybrid {
					at.slot = 2
				}
				chain, all := p.chain(10), layout.Span{Hi: 10}
				write := func(rows layout.Span) {
					if err := r.state.write(at, chain, rows, allLayers); err != nil {
						t.Fatal(err)
					}
				}
				write(all)
				check := func(what string, chain []uint64, want error) {
					t.Helper()
					if err := r.state.check(at, chain, all); !errors.Is(err, want) {
						t.Errorf("%s %s rank %d: %s: %v, want %v", m, order, rank, what, err, want)
					}
				}
				check("as written", chain, nil)
				for what, other := range map[string]Prompt{
					"other weights": {Version: 2, Prefix: 2, Shared: 4, Tail: 3, Len: 10},
					"other tail":    {Version: 1, Prefix: 2, Shared: 4, Tail: 4, Len: 10},
				} {
					check(what, other.chain(10), ErrWrong)
				}
				r.state.damage(at, 10)
				check("one bit", chain, ErrWrong)
				write(layout.Span{Lo: 9, Hi: 10})
				check("written again", chain, nil)
				r.state.spoil(items{blocks: []int32{1}, slot: -1})
				check("a block not written", chain, ErrWrong)
				write(all)
				if m == Hybrid {
					r.state.spoil(items{slot: 2})
					check("a slot not written", chain, ErrWrong)
				}
				r.Close()
			}
		}
	}
}

// lost is memory of a GPU whose context is.
type lost struct{}

var errLost = errors.New("context is lost")

func (lost) put(int64, []byte) error { return errLost }
func (lost) get([]byte, int64) error { return errLost }

// TestGPULost: a rank whose GPU fails exports nothing.
func TestGPULost(t *testing.T) {
	r, err := New(config(Attention, "planes", 0, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i := range r.state.bufs {
		r.state.bufs[i].dev = lost{}
	}
	if err := r.prefill(startOp{Label: "r", Prompt: Prompt{Prefix: 1, Shared: 4, Tail: 2, Len: 8}}); !errors.Is(err, errLost) {
		t.Errorf("prefill: %v, want %v", err, errLost)
	}
}

// TestSharedTokensSameState: prompts that share a beginning have the state of it alike,
// and of nothing behind it.
func TestSharedTokensSameState(t *testing.T) {
	a := Prompt{Prefix: 1, Shared: 8, Tail: 2, Len: 12}
	b := Prompt{Prefix: 1, Shared: 8, Tail: 3, Len: 12}
	if !slices.Equal(a.Tokens()[:8], b.Tokens()[:8]) || !slices.Equal(a.chain(12)[:9], b.chain(12)[:9]) {
		t.Error("shared tokens differ")
	}
	if slices.Equal(a.Tokens()[8:], b.Tokens()[8:]) || a.chain(12)[9] == b.chain(12)[9] {
		t.Error("tails are equal")
	}
	if p, err := unpack(a.pack()); err != nil || p != a {
		t.Errorf("packed %+v, got %+v, %v", a, p, err)
	}
}

func TestConfigCheck(t *testing.T) {
	for what, change := range map[string]func(*Config){
		"no group":     func(c *Config) { c.Group = "" },
		"rank":         func(c *Config) { c.Rank = 4 },
		"order":        func(c *Config) { c.Order = "x" },
		"model":        func(c *Config) { c.Model = "x" },
		"no slots":     func(c *Config) { c.Slots = 0 },
		"block tokens": func(c *Config) { c.BlockTokens = 0 },
	} {
		c := config(Hybrid, "planes", 0, 4)
		change(&c)
		if err := c.Check(); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// FuzzLines: lines of a driver, and steps of rank 0, are refused or in bounds.
func FuzzLines(f *testing.F) {
	for _, c := range []Command{{Op: Stats}, {Op: Export, Label: "a", Prompt: &Prompt{Len: 3}}, {Op: Abort, Label: "b"}} {
		b, _ := json.Marshal(c)
		f.Add(b)
	}
	f.Add([]byte(`{"Through":3,"Start":[{"Label":"a","Prompt":{"Len":2}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := parse(b); err == nil && c.Prompt != nil && (c.Prompt.Len < 1 || c.Prompt.Len > MaxTokens) {
			t.Errorf("%+v", c)
		}
		if s, err := decodeStep(b); err == nil && len(s.Start) > maxStarts {
			t.Errorf("%+v", s)
		}
		if p, err := unpack(b); err == nil && p.Len < 1 {
			t.Errorf("%+v", p)
		}
	})
}
