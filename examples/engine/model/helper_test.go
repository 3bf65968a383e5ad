package model_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/tp"
)

// rank is one rank of an in-process group with memory of its own.
type rank struct {
	mem  *model.Memory
	run  *model.Run
	bufs [][]byte // those that it has, in order
}

func newRanks(t testing.TB, cfg model.Config, sizes model.Sizes, groups []*tp.Group) []rank {
	return newJoined(t, cfg, sizes, model.Split{TP: len(groups)}, groups)
}

func newSplit(t testing.TB, cfg model.Config, sizes model.Sizes, split model.Split) []rank {
	return newJoined(t, cfg, sizes, split, tp.Pipes(split.Ranks()))
}

func newJoined(t testing.TB, cfg model.Config, sizes model.Sizes, split model.Split, groups []*tp.Group) []rank {
	ranks := make([]rank, len(groups))
	for i, g := range groups {
		m, err := model.New(cfg, i, split)
		if err != nil {
			t.Fatal(err)
		}
		bufs := alloc(cfg.Bytes(m.Part(), sizes))
		mem, err := model.NewMemory(cfg, m.Part(), sizes, bufs)
		if err != nil {
			t.Fatal(err)
		}
		ranks[i] = rank{mem: mem, run: model.NewRun(m, mem, g),
			bufs: slices.DeleteFunc(bufs[:], func(b []byte) bool { return len(b) == 0 })}
	}
	return ranks
}

func alloc(sizes [4]int64) (bufs [4][]byte) {
	for i, n := range sizes {
		bufs[i] = make([]byte, n)
	}
	return bufs
}

// forward runs one step on all ranks and returns rank 0's logits.
func forward(t testing.TB, ranks []rank, seq model.Seq, tokens []int32, pos int32) []float32 {
	errs := make([]error, len(ranks))
	var logits []float32
	var wg sync.WaitGroup
	for i := range ranks {
		wg.Go(func() {
			l, err := ranks[i].run.Forward(seq, tokens, pos)
			if errs[i] = err; i == 0 {
				logits = l
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return logits
}

// generate prefills in chunks and decodes greedily; between is called after prefill.
func generate(t testing.TB, ranks []rank, seq model.Seq, prompt []int32, maxNew, chunk int, between func()) []int32 {
	if seq.Slot >= 0 {
		for _, r := range ranks {
			r.mem.ClearSlot(seq.Slot)
		}
	}
	var logits []float32
	for i := 0; i < len(prompt); i += chunk {
		logits = forward(t, ranks, seq, prompt[i:min(i+chunk, len(prompt))], int32(i))
	}
	if between != nil {
		between()
	}
	out := []int32{model.Greedy(logits)}
	for len(out) < maxNew {
		logits = forward(t, ranks, seq, out[len(out)-1:], int32(len(prompt)+len(out)-1))
		out = append(out, model.Greedy(logits))
	}
	return out
}

func text(s string) []int32 {
	out := []int32{model.BOS}
	for _, b := range []byte(s) {
		out = append(out, int32(b))
	}
	return out
}
