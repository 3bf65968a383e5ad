// Package admission decides how much of a prompt may join a step when an engine runs
// prefills from captured CUDA graphs: a step has to fit a shape that was captured, so
// shapes are a capacity beside blocks and slots. Pure.
//
// The rule is the reference's (Megatron-LM, CUDA-graph-aware prefill admission), vector
// for vector, with one addition: a prompt that has begun and is alone in the batch runs
// without a graph when no shape takes it, since waiting could not change that.
package admission

import (
	"errors"
	"fmt"
)

// ErrShapes: an idle engine has no captured shape for the next prompt; waiting would not help.
var ErrShapes = errors.New("admission: no captured shape fits")

// ErrList: a text that lists no shapes.
var ErrList = errors.New("admission: bad shape")

// Shape is a captured graph: up to Tokens tokens of up to Prefills prompts and Decodes
// requests that decode.
type Shape struct{ Tokens, Prefills, Decodes int32 }

func (s Shape) String() string {
	return fmt.Sprintf("[%d tokens, %d prefills, %d decodes]", s.Tokens, s.Prefills, s.Decodes)
}

// Batch is what a step holds already.
type Batch struct{ Tokens, Prefills, Decodes int32 }

// Idle reports whether the step holds nothing.
func (b Batch) Idle() bool { return b.Prefills == 0 && b.Decodes == 0 }

// Rules are the shapes of one engine, in the order of preference.
type Rules struct {
	Shapes []Shape
	// Strict engines (those with per-request state) cannot lend a place of a prefill to a
	// decode.
	Strict bool
}

// Takes reports whether a step of b fits s.
func (r Rules) Takes(s Shape, b Batch) bool {
	switch {
	case s.Tokens < b.Tokens:
		return false
	case b.Prefills == 0:
		return s.Prefills == 0 && s.Decodes >= b.Decodes
	case r.Strict:
		return s.Prefills >= b.Prefills && s.Decodes >= b.Decodes
	}
	return s.Prefills >= b.Prefills && s.Prefills+s.Decodes >= b.Prefills+b.Decodes
}

// Match is the first shape that takes b: the graph that the step runs.
func (r Rules) Match(b Batch) (Shape, bool) {
	for _, s := range r.Shapes {
		if r.Takes(s, b) {
			return s, true
		}
	}
	return Shape{}, false
}

// Chunk is how many tokens of a prompt, at most budget, may join b: as many as some shape
// takes. 0: none does.
func (r Rules) Chunk(b Batch, budget int32) int32 {
	var best int32
	for _, s := range r.Shapes {
		n := min(budget, s.Tokens-b.Tokens)
		if n > best && r.Takes(s, Batch{b.Tokens + n, b.Prefills + 1, b.Decodes}) {
			best = n
		}
	}
	return best
}

// Verdict is what becomes of a prompt in this step.
type Verdict uint8

const (
	Run   Verdict = iota + 1 // Chunk tokens of it, by a captured graph
	Eager                    // the whole budget, without a graph
	Wait                     // not in this step, and nobody behind it
)

// Prompt is the first one in the queue.
type Prompt struct {
	Left    int32 // tokens to compute
	Started bool  // earlier chunks have run
}

// Gate admits prompts to steps and counts how often one waited. The zero Gate without
// shapes lets everything in. Not safe for concurrent use.
type Gate struct {
	Rules Rules
	waits int
}

// Admit says how much of p joins b, within budget. ErrShapes: p can never begin.
func (g *Gate) Admit(b Batch, p Prompt, budget int32) (Verdict, int32, error) {
	budget = min(budget, p.Left)
	if len(g.Rules.Shapes) == 0 {
		return Run, budget, nil
	}
	n := g.Rules.Chunk(b, budget)
	switch {
	case n > 0:
		g.waits = 0
		return Run, n, nil
	case !b.Idle():
		g.waits++
		return Wait, 0, nil
	case p.Started:
		g.waits = 0
		return Eager, budget, nil
	}
	return 0, 0, fmt.Errorf("%w: a prompt of %d tokens, and the engine is idle: capture a shape of at least 1 prefill", ErrShapes, p.Left)
}

// Waits is how many steps in a row a prompt was kept waiting.
func (g *Gate) Waits() int { return g.waits }

// Shorten applies what a chunk has to respect after its shape was found: a chunk that is
// not the last ends at a multiple of block when align is set (an engine that keeps
// snapshots of its recurrent state), and never leaves exactly one token.
func Shorten(chunk, left, pos, block int32, align bool) int32 {
	if chunk >= left {
		return chunk
	}
	if end := pos + chunk; align && end/block*block > pos {
		chunk = end/block*block - pos
	}
	if left-chunk == 1 && chunk > 1 {
		chunk--
	}
	return chunk
}
