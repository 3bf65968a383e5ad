package reshard

import (
	"errors"
	"iter"

	"github.com/batonkv/baton/transfer/layout"
)

// ErrUncovered reports destination cells that no source holds.
var ErrUncovered = errors.New("reshard: destination not covered")

// Move copies one box of one state from rank Src to rank Dst.
type Move struct {
	State    int32
	Src, Dst layout.Rank
	Box      layout.Box
}

// Pair is one (source rank, destination rank) that exchanges bytes.
type Pair struct{ Src, Dst layout.Rank }

// Plan is immutable.
type Plan struct{}

// New plans src -> dst.
func New(m layout.Model, src, dst []layout.Shard) (*Plan, error) { return nil, ErrUncovered }

// Moves yields every move, sorted by (Dst, Src, State, Box).
func (p *Plan) Moves() iter.Seq[Move] { return nil }

// Pairs are the rank pairs that exchange bytes, sorted by (Dst, Src); a Job's Pair indexes it.
func (p *Plan) Pairs() []Pair { return nil }

// Digest identifies the plan: equal plans have equal digests.
func (p *Plan) Digest() [32]byte { return [32]byte{} }
