package engine

import (
	"context"
	"fmt"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/examples/engine/tp"
)

// Reference generates greedily with one rank in this process, without scheduler,
// sidecar or shared memory: what a hand-off's tokens are compared with. The last token
// may be the model's EOS. Of cfg only Model, BlockTokens and Types count.
func Reference(ctx context.Context, cfg Config, tokens []int32, maxNew int) ([]int32, error) {
	return ReferenceConverted(ctx, cfg, cfg.Types, tokens, maxNew)
}

// ReferenceConverted is Reference with the state of the prompt converted to other types
// before the first token is decoded: what a hand-off between engines of unequal types is
// compared with.
func ReferenceConverted(ctx context.Context, cfg Config, to model.Types, tokens []int32, maxNew int) ([]int32, error) {
	want, err := ReferenceAnswer(ctx, cfg, to, front.Request{Tokens: tokens, MaxNew: int32(maxNew), Mode: front.Full})
	return want.Tokens, err
}

// Wanted is what an engine has to give.
type Wanted struct {
	Tokens   []int32
	Logprobs []float32 // of Tokens
	Reason   sample.Reason
	// Of a model with a draft layer: tokens that it drafts, and that come true.
	Drafted, Accepted int32
}

// ReferenceAnswer is ReferenceConverted for a request of mode Full with any sampling. It
// computes one token at a time and takes none back: drafts are only counted.
func ReferenceAnswer(ctx context.Context, cfg Config, to model.Types, req front.Request) (w Wanted, err error) {
	if err := req.Check(); err != nil || cfg.BlockTokens < 1 {
		return w, fmt.Errorf("%w: reference in blocks of %d: %w", ErrConfig, cfg.BlockTokens, err)
	}
	one, err := newSolo(cfg, req)
	if err != nil {
		return w, err
	}
	answer := sample.NewAnswer(req.Sample, req.Answer, req.MaxNew, cfg.Model.EOS)
	var drafts []int32
	for next := req.Tokens; ; {
		logits, err := one.forward(ctx, next)
		if err != nil {
			return w, err
		}
		t := answer.Pick(logits)
		w.Tokens, w.Logprobs = append(w.Tokens, t.ID), append(w.Logprobs, t.Logprob)
		hit := len(drafts) > 0 && drafts[0] == t.ID
		if hit {
			w.Accepted++
			drafts = drafts[1:]
		}
		if w.Reason = answer.Add(t.ID); w.Reason != "" {
			return w, nil
		}
		if !hit {
			if drafts, err = one.propose(t.ID, answer.Left()); err != nil {
				return w, err
			}
			w.Drafted += int32(len(drafts))
		}
		if len(w.Tokens) == 1 {
			if err := one.convert(to); err != nil {
				return w, err
			}
		}
		next = []int32{t.ID}
	}
}

// solo is one request on one rank with memory that nobody else sees.
type solo struct {
	cfg Config
	m   *model.Model
	mem *model.Memory
	run *model.Run
	seq model.Seq
	pos int32
}

func newSolo(cfg Config, req front.Request) (*solo, error) {
	m, err := model.New(cfg.Model, 0, model.Split{})
	if err != nil {
		return nil, err
	}
	blocks := (int64(len(req.Tokens)) + int64(req.MaxNew) + int64(cfg.BlockTokens) - 1) / int64(cfg.BlockTokens)
	cfg.Blocks, cfg.Slots = int32(blocks), 1
	s := &solo{cfg: cfg, m: m, seq: model.Seq{Blocks: make([]int32, blocks), Prev: -1}}
	for i := range s.seq.Blocks {
		s.seq.Blocks[i] = int32(i)
	}
	if s.mem, err = heap(cfg, m); err != nil {
		return nil, err
	}
	s.mem.ClearSlot(0)
	s.run = model.NewRun(m, s.mem, tp.Single())
	return s, nil
}

// forward computes tokens and gives the logits behind the last.
func (s *solo) forward(ctx context.Context, tokens []int32) (logits []float32, err error) {
	for len(tokens) > 0 {
		n := min(len(tokens), model.MaxChunk)
		if logits, err = s.run.Forward(s.seq, tokens[:n], s.pos); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.seq.Prev = tokens[n-1]
		s.pos, tokens = s.pos+int32(n), tokens[n:]
	}
	return logits, nil
}

// propose drafts tokens behind the newest, of which left more may come.
func (s *solo) propose(token, left int32) ([]int32, error) {
	n := min(s.cfg.Model.Proposals, int(left)-1)
	if n < 1 {
		return nil, nil
	}
	return s.run.Propose(s.seq, token, s.pos, s.run.Hidden(1), n)
}

// convert stores the state in other types.
func (s *solo) convert(to model.Types) error {
	if to.WithDefaults() == s.cfg.Types.WithDefaults() {
		return nil
	}
	s.cfg.Types = to
	mem, err := heap(s.cfg, s.m)
	if err != nil {
		return err
	}
	s.mem.Convert(mem)
	s.mem, s.run = mem, model.NewRun(s.m, mem, tp.Single())
	return nil
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
