package planview

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/float"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/models"
	"github.com/batonkv/baton/transfer/reshard"
)

// MaxTokens bounds a request: what is lowered is held in memory.
const MaxTokens = 1 << 20

// maxPieces bounds blocks times boxes of one pair, for the same reason.
const maxPieces = 1 << 20

// maxPairs bounds how many pairs are lowered; beyond, nobody reads the table.
const maxPairs = 1 << 14

// View is a re-shard explained. It marshals to JSON as it is.
type View struct {
	Model  string  `json:"model"`
	From   string  `json:"from"`
	To     string  `json:"to"`
	Tokens int32   `json:"tokens"`
	Digest string  `json:"digest"` // of the plan
	States []State `json:"states"`
	Pairs  []Pair  `json:"pairs"`
	Bytes  int64   `json:"bytes"` // of all pairs, as the destination stores them
	// Sources and Destinations are all ranks of each side, those without a pair too.
	Sources      []layout.Rank `json:"sources"`
	Destinations []layout.Rank `json:"destinations"`
	Notes        []string      `json:"notes,omitempty"`
	// Refused says why a hand-off between these groups is refused; empty: it is not.
	Refused []string `json:"refused,omitempty"`
}

// ErrRefused says that Baton explains this re-shard and would not do it.
var ErrRefused = errors.New("plan: refused")

// Check is ErrRefused when a hand-off between the groups is refused.
func (v *View) Check() error {
	if len(v.Refused) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrRefused, strings.Join(v.Refused, "; "))
}

// State is one state of the model and the bytes of it that move.
type State struct {
	Name   string `json:"name"`
	Layers int32  `json:"layers"`
	Units  int32  `json:"units"`
	Elems  int32  `json:"elems"`
	Paged  bool   `json:"paged"`
	Bytes  int64  `json:"bytes"` // that move: each replica of the destination counts
}

// Pair is what one rank pulls from another.
type Pair struct {
	Src   layout.Rank `json:"src"`
	Dst   layout.Rank `json:"dst"`
	Bytes int64       `json:"bytes"`
	// Nests and Copies are strided and contiguous copies when each side's blocks are
	// consecutive; Scattered is nests when no two are.
	Nests     int   `json:"nests"`
	Copies    int64 `json:"copies"`
	Scattered int   `json:"nests_scattered"`
	Boxes     []Box `json:"boxes"`
	// Refused says why a hand-off of this pair is refused; "": it is not.
	Refused string `json:"refused,omitempty"`
}

// Box is one move.
type Box struct {
	State  string   `json:"state"`
	Layers [2]int32 `json:"layers"`
	Units  [2]int32 `json:"units"`
	Bytes  int64    `json:"bytes"`
}

// Geometry is the input of Explain: a model and the shards of both groups.
type Geometry struct {
	Name     string // what the model is called
	From, To string // how the sides are called
	Model    layout.Model
	Src, Dst []layout.Shard
	Notes    []string
}

// OfModel is the geometry of a published model under two sides.
func OfModel(m models.Model, from, to Side, tokens int32) (Geometry, error) {
	g := Geometry{Name: m.Slug, From: from.String(), To: to.String(), Model: m.Desc.Model()}
	if err := checkTokens(tokens); err != nil {
		return g, err
	}
	for _, x := range []struct {
		side Side
		out  *[]layout.Shard
		name string
	}{{from, &g.Src, "--from"}, {to, &g.Dst, "--to"}} {
		x.side.pool(tokens)
		s, err := m.Desc.Shards(m.Cut(x.side.Cut), x.side.Mem)
		if err != nil {
			return g, fmt.Errorf("%w: %s %s: %w", ErrInput, x.name, x.side, err)
		}
		*x.out = s
	}
	if m.MTPLayers > 0 {
		g.Notes = append(g.Notes, fmt.Sprintf("the state of %d draft (MTP) layers is left out", m.MTPLayers))
	}
	return g, nil
}

func checkTokens(tokens int32) error {
	if tokens < 0 || tokens > MaxTokens {
		return fmt.Errorf("%w: tokens %d: want 0 to %d", ErrInput, tokens, MaxTokens)
	}
	return nil
}

// Explain plans and lowers a hand-off of tokens under g.
func Explain(g Geometry, tokens int32) (*View, error) {
	if err := checkTokens(tokens); err != nil {
		return nil, err
	}
	p, err := reshard.New(g.Model, g.Src, g.Dst)
	if err != nil {
		return nil, err
	}
	d := p.Digest()
	v := &View{Model: g.Name, From: g.From, To: g.To, Tokens: tokens, Digest: hex.EncodeToString(d[:]), Bytes: p.Total(tokens), Notes: slices.Clone(g.Notes)}
	v.Sources, v.Destinations = ranks(g.Src), ranks(g.Dst)
	for _, s := range g.Model.States {
		v.States = append(v.States, State{Name: s.Name, Layers: s.Layers, Units: s.Units, Elems: s.Elems, Paged: s.Paging == layout.PerBlock})
	}
	pairs := p.Pairs()
	if len(pairs) > maxPairs {
		return nil, fmt.Errorf("%w: %d pairs of ranks: at most %d are explained", ErrInput, len(pairs), maxPairs)
	}
	var buf []lower.Nest
	for i := range pairs {
		var row Pair
		if row, buf, err = v.pair(p, uint32(i), buf); err != nil {
			return nil, err
		}
		v.Pairs = append(v.Pairs, row)
	}
	if tokens == 0 && v.Bytes > 0 {
		v.Notes = append(v.Notes, "no token moves, as when the destination has the whole prompt in its cache: only what is kept per request does")
	} else if tokens == 0 {
		v.Notes = append(v.Notes, "no token moves, and this model keeps nothing per request: the hand-off is opened and closed, and nothing is copied")
	}
	return v, nil
}

// ranks are those of the shards, ascending, each once.
func ranks(shards []layout.Shard) []layout.Rank {
	out := make([]layout.Rank, 0, len(shards))
	for i := range shards {
		out = append(out, shards[i].Rank)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// converts notes what a hand-off does to elements whose types differ, and says why it is
// refused when no copier does it.
func (v *View) converts(from, to layout.DType) (refused string) {
	add := func(list *[]string, s string) {
		if !slices.Contains(*list, s) {
			*list = append(*list, s)
		}
	}
	switch {
	case from == to:
	case float.Converts(from, to):
		add(&v.Notes, fmt.Sprintf("%v becomes %v on the way, each element rounded once", from, to))
	default:
		refused = fmt.Sprintf("no copier converts %v to %v: a hand-off of this pair is refused", from, to)
		add(&v.Refused, refused)
	}
	return refused
}

func (v *View) pair(p *reshard.Plan, i uint32, buf []lower.Nest) (Pair, []lower.Nest, error) {
	t, err := lower.New(p, i)
	if err != nil {
		return Pair{}, buf, err
	}
	r := t.Ranks()
	row := Pair{Src: r.Src, Dst: r.Dst, Bytes: p.Bytes(i, v.Tokens)}
	srcRows, dstRows := int32(1), int32(1)
	for part := range p.Parts(i) {
		st := &p.Model().States[part.State]
		rows := int64(part.To.Rows)
		if st.Paging == layout.PerBlock {
			rows, srcRows, dstRows = int64(v.Tokens), part.From.Rows, part.To.Rows
		}
		bytes := part.Box.Area() * int64(st.Elems) * part.To.DType.Size() * rows
		v.States[part.State].Bytes += bytes
		if why := v.converts(part.From.DType, part.To.DType); why != "" {
			row.Refused = why
		}
		row.Boxes = append(row.Boxes, Box{st.Name, [2]int32{part.Box.Layers.Lo, part.Box.Layers.Hi}, [2]int32{part.Box.Units.Lo, part.Box.Units.Hi}, bytes})
	}
	if n := int64(v.Tokens/min(srcRows, dstRows)) * int64(len(row.Boxes)); n > maxPieces {
		return row, buf, fmt.Errorf("%w: rank %d to %d has %d pieces, at most %d are lowered: take fewer tokens or larger blocks",
			ErrInput, r.Src, r.Dst, n, maxPieces)
	}
	for _, scattered := range []bool{false, true} {
		j := lower.ScatteredJob(t, (v.Tokens+srcRows-1)/srcRows, srcRows, dstRows, !scattered)
		j.Tokens.Hi = v.Tokens
		if buf, err = t.Nests(buf[:0], j); err != nil {
			return row, buf, err
		}
		if scattered {
			row.Scattered = len(buf)
			continue
		}
		row.Nests = len(buf)
		for k := range buf {
			n := int64(1)
			for _, d := range buf[k].Dims[:buf[k].Rank] {
				n *= int64(d.N)
			}
			row.Copies += n
		}
	}
	return row, buf, nil
}
