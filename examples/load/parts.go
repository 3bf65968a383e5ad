package load

import (
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// With ExportParts a prompt of more than one chunk leaves while it is computed: a chunk in
// each step, or in every second one its first layer and in the next the others. Memory that
// is not computed holds poison, so that what is read too early shows when it is admitted.

// growth is a prompt of which parts leave: alike on every rank.
type growth struct {
	start   startOp // what was asked for
	hashes  []uint64
	chunk   int32
	layered bool
	at      handoff.Reach // computed, and said
	named   int32         // blocks that parts named
}

// maxParts bounds the chunks of a prompt.
const maxParts = 12

// partly begins to compute a prompt whose memory was taken, unless it is one chunk. How it
// leaves follows from its tokens.
func (r *Rank) partly(q *request, o startOp, hashes []uint64) bool {
	n, x := q.pos, mix(o.Prompt.Tail^uint64(o.Prompt.Len))
	chunk := max(1, n/(2+int32(x>>1%(maxParts-1))))
	if n-q.table.Cached <= chunk {
		return false
	}
	q.grows = &growth{start: o, hashes: hashes, chunk: chunk, layered: x&1 == 1, at: handoff.All(q.table.Cached)}
	r.growing = append(r.growing, q)
	return true
}

// compute does the next of every prompt that leaves in parts.
func (r *Rank) compute() error {
	for _, q := range slices.Clone(r.growing) {
		if err := r.part(q); err != nil {
			return err
		}
	}
	return nil
}

// part computes what comes next of a prompt, and exports it.
func (r *Rank) part(q *request) error {
	g, n := q.grows, q.prompt.Len
	to, layers := handoff.All(min(g.at.Tokens+g.chunk, n)), allLayers
	switch {
	case g.at.Ahead > g.at.Tokens: // of which the first layer is there
		to, layers.Lo = handoff.All(g.at.Ahead), g.at.Layers
	case g.layered:
		to = handoff.Reach{Tokens: g.at.Tokens, Ahead: to.Tokens, Layers: 1}
		layers.Hi = to.Layers
	}
	rows := layout.Span{Lo: g.at.Tokens, Hi: to.Ahead}
	if to.Tokens == n {
		if err := r.state.write(q.at(), q.chain, rows, layers); err != nil {
			return err
		}
		r.growing = slices.DeleteFunc(r.growing, func(o *request) bool { return o == q })
		q.grows = nil
		return r.export(q, g.start, g.hashes, q.parts)
	}
	if err := r.state.write(items{q.table.Blocks, -1}, q.chain, rows, layers); err != nil {
		return err
	}
	blocks := r.pool.BlocksFor(to.Ahead)
	e := handoff.ExportPart{Label: q.label, Part: q.parts + 1, Blocks: slices.Clone(q.table.Blocks[g.named:blocks]), Tokens: n, Position: n,
		Reach: to, WeightsEpoch: q.prompt.Version}
	g.at, g.named, q.parts = to, blocks, e.Part
	return r.send(e)
}
