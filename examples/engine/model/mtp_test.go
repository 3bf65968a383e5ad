package model_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/batonkv/baton/examples/engine/model"
)

// propose drafts on all ranks and returns rank 0's.
func propose(t testing.TB, ranks []rank, seq model.Seq, token, pos int32, hidden [][]float32, n int) []int32 {
	errs := make([]error, len(ranks))
	var out []int32
	var wg sync.WaitGroup
	for i := range ranks {
		wg.Go(func() {
			got, err := ranks[i].run.Propose(seq, token, pos, hidden[i], n)
			if errs[i] = err; i == 0 {
				out = got
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return out
}

// drafted computes a prompt in chunks and drafts behind token.
func drafted(t testing.TB, ranks []rank, prompt []int32, token int32, chunk int) []int32 {
	at := seq
	at.Prev = -1
	for _, r := range ranks {
		r.mem.ClearSlot(at.Slot)
	}
	for i := 0; i < len(prompt); i += chunk {
		part := prompt[i:min(i+chunk, len(prompt))]
		forward(t, ranks, at, part, int32(i))
		at.Prev = part[len(part)-1]
	}
	var hidden [][]float32
	for _, r := range ranks {
		hidden = append(hidden, r.run.Hidden(1))
	}
	return propose(t, ranks, at, token, int32(len(prompt)), hidden, 3)
}

// TestDraftFollowsWhatWasSaid: of a text that repeats itself the draft is what comes next,
// alike for every layout and however the prompt was cut.
func TestDraftFollowsWhatWasSaid(t *testing.T) {
	prompt := text("The quick brown fox; The ")
	for _, cfg := range []model.Config{model.MTP(1), model.Attention(1).WithDrafts(3), model.MLA(2).WithDrafts(3), model.GQA(1).WithDrafts(3)} {
		for _, split := range []model.Split{{}, {TP: 2}, {TP: 4}, {PP: 2}, {TP: 2, PP: 3}} {
			for _, chunk := range []int{64, 5} {
				ranks := newSplit(t, cfg, sizes, split)
				if got := drafted(t, ranks, prompt, 'q', chunk); model.Decode(got) != "uic" {
					t.Errorf("%s, %v, chunks of %d: %q", cfg.Name, split, chunk, model.Decode(got))
				}
			}
		}
	}
}

// TestDraftHangsOnTheModel: the hidden vector takes part in what is drafted.
func TestDraftHangsOnTheModel(t *testing.T) {
	cfg := model.MTP(1)
	ranks := newSplit(t, cfg, sizes, model.Split{})
	drafted(t, ranks, text(prose), 'x', 64)
	at, differ := seq, false
	at.Prev = '.'
	for i := range 8 {
		hidden := make([]float32, cfg.Hidden)
		hidden[i] = 1
		got := propose(t, ranks, at, 'x', int32(len(prose)+1), [][]float32{hidden}, 3)
		hidden[i] = -1
		differ = differ || !slices.Equal(got, propose(t, ranks, at, 'x', int32(len(prose)+1), [][]float32{hidden}, 3))
	}
	if !differ {
		t.Error("16 hidden vectors give one draft")
	}
}

// TestVerifyIsForward: logits after each token of a chunk are those of single steps, and
// taking tokens back leaves no trace.
func TestVerifyIsForward(t *testing.T) {
	prompt, next := text(prose), []int32{'a', 'b', 'c', 'd'}
	for _, cfg := range []model.Config{model.MTP(1), model.SWA(1)} {
		one, many := newSplit(t, cfg, sizes, model.Split{})[0], newSplit(t, cfg, sizes, model.Split{})[0]
		for _, r := range []rank{one, many} {
			r.mem.ClearSlot(seq.Slot)
			if _, err := r.run.Forward(seq, prompt, 0); err != nil {
				t.Fatal(err)
			}
		}
		pos := int32(len(prompt))
		saved := many.mem.Save(seq.Slot)
		if _, err := many.run.Verify(seq, []int32{'a', 'z', 'z'}, pos); err != nil {
			t.Fatal(err)
		}
		many.mem.Restore(seq.Slot, saved)
		all, err := many.run.Verify(seq, next, pos)
		if err != nil {
			t.Fatal(err)
		}
		for i, tok := range next {
			want, err := one.run.Forward(seq, []int32{tok}, pos+int32(i))
			if err != nil || !slices.Equal(all[i], want) {
				t.Errorf("%s: token %d: other logits: %v", cfg.Name, i, err)
			}
			if !slices.Equal(one.run.Hidden(1), many.run.Hidden(len(next))[i*cfg.Hidden:(i+1)*cfg.Hidden]) {
				t.Errorf("%s: token %d: another hidden vector", cfg.Name, i)
			}
		}
	}
}

// TestDraftRefusals: a draft is bounded, needs a layer, and rows that somebody wrote.
func TestDraftRefusals(t *testing.T) {
	for _, cfg := range []model.Config{{Pattern: "D*"}, {Pattern: "*DD"}} {
		c := model.Attention(1)
		c.Pattern, c.Proposals = cfg.Pattern, 1
		if err := c.Check(); !errors.Is(err, model.ErrConfig) {
			t.Errorf("%s: %v", c.Pattern, err)
		}
	}
	for _, n := range []int{0, model.MaxProposals + 1} {
		if err := model.Attention(1).WithDrafts(n).Check(); !errors.Is(err, model.ErrConfig) {
			t.Errorf("%d proposals: %v", n, err)
		}
	}
	r, hidden := newSplit(t, model.MTP(1), sizes, model.Split{})[0], make([]float32, 64)
	if _, err := r.run.Propose(seq, 'a', 40, hidden, 2); !errors.Is(err, model.ErrState) {
		t.Errorf("rows that nobody wrote: %v", err)
	}
	if _, err := r.run.Propose(seq, 'a', int32(len(seq.Blocks))*16-1, hidden, 2); !errors.Is(err, model.ErrConfig) {
		t.Errorf("beyond the table: %v", err)
	}
	plain := newSplit(t, model.Hybrid(1), sizes, model.Split{})[0]
	if _, err := plain.run.Propose(seq, 'a', 0, hidden, 1); !errors.Is(err, model.ErrConfig) {
		t.Errorf("no draft layer: %v", err)
	}
}
