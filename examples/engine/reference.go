package engine

import (
	"context"
	"fmt"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/tp"
)

// Reference generates greedily with one rank in this process, without scheduler,
// sidecar or shared memory: what a hand-off's tokens are compared with. The last token
// may be model.EOS. Of cfg only Model, BlockTokens and Types count.
func Reference(ctx context.Context, cfg Config, tokens []int32, maxNew int) ([]int32, error) {
	return ReferenceConverted(ctx, cfg, cfg.Types, tokens, maxNew)
}

// ReferenceConverted is Reference with the state of the prompt converted to other types
// before the first token is decoded: what a hand-off between engines of unequal types is
// compared with.
func ReferenceConverted(ctx context.Context, cfg Config, to model.Types, tokens []int32, maxNew int) ([]int32, error) {
	if len(tokens) < 1 || len(tokens) > front.MaxTokens || maxNew < 1 || maxNew > front.MaxNew || cfg.BlockTokens < 1 {
		return nil, fmt.Errorf("%w: reference of %d tokens, %d new, blocks of %d", ErrConfig, len(tokens), maxNew, cfg.BlockTokens)
	}
	m, err := model.New(cfg.Model, 0, model.Split{})
	if err != nil {
		return nil, err
	}
	blocks := (int64(len(tokens)) + int64(maxNew) + int64(cfg.BlockTokens) - 1) / int64(cfg.BlockTokens)
	cfg.Blocks, cfg.Slots = int32(blocks), 1
	mem, err := heap(cfg, m)
	if err != nil {
		return nil, err
	}
	mem.ClearSlot(0)
	seq := model.Seq{Blocks: make([]int32, blocks)}
	for i := range seq.Blocks {
		seq.Blocks[i] = int32(i)
	}
	run := model.NewRun(m, mem, tp.Single())
	var out []int32
	for pos, next := 0, tokens; ; {
		n := min(len(next), model.MaxChunk)
		logits, err := run.Forward(seq, next[:n], int32(pos))
		if err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		pos += n
		if next = next[n:]; len(next) > 0 {
			continue
		}
		t := model.Greedy(logits)
		if out = append(out, t); t == model.EOS || len(out) == maxNew {
			return out, nil
		}
		if next = out[len(out)-1:]; len(out) == 1 && to.WithDefaults() != cfg.Types.WithDefaults() {
			cfg.Types = to
			converted, err := heap(cfg, m)
			if err != nil {
				return nil, err
			}
			mem.Convert(converted)
			run = model.NewRun(m, converted, tp.Single())
		}
	}
}

// heap is a rank's memory that nobody else sees.
func heap(cfg Config, m *model.Model) (*model.Memory, error) {
	sizes := cfg.Model.Bytes(m.Part(), cfg.sizes())
	var bufs [len(sizes)][]byte
	for i, n := range sizes {
		bufs[i] = make([]byte, n)
	}
	return model.NewMemory(cfg.Model, m.Part(), cfg.sizes(), bufs)
}
