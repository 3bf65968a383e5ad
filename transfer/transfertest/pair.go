package transfertest

import (
	"testing"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
)

// Pair is a ready fixture for a backend's own tests: TP2 to TP1 of a small hybrid
// model, the destination registered and a link to source rank 0 open.
type Pair struct {
	Link     transfer.Link
	Template *lower.Template
	s        *scene
}

// NewPair registers and opens on b.
func NewPair(t testing.TB, alloc Alloc, b transfer.Backend) *Pair {
	t.Helper()
	return PairOf(t, Env{Backend: b, Alloc: alloc})
}

// PairOf is NewPair whose source's memory is not made as the destination's is.
func PairOf(t testing.TB, e Env) *Pair {
	t.Helper()
	s := set(t, e)
	return &Pair{Link: s.link, Template: s.template(t, 0), s: s}
}

// Job moves tokens of the pair.
func (p *Pair) Job(tokens layout.Span) lower.Job { return p.s.shape.job(0, tokens) }

// Pull submits a job of tokens.
func (p *Pair) Pull(t testing.TB, tokens layout.Span) transfer.Ticket {
	t.Helper()
	return pull(t, p.Link, p.Template, p.Job(tokens))
}
