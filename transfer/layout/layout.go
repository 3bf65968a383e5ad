// Package layout says where model state lives, without addresses.
//
// A Model is a list of States (attention K, attention V, Mamba conv bands, the
// recurrent state). Each rank holds Shards: a Box of a State in global
// coordinates and a View, the byte strides of that box in one of its buffers.
// The package knows nothing of TP, PP or EP: uneven stages, replicated KV heads
// and expert replicas are just boxes. Package layout/parallel builds them from
// parallelism for the common engines. Everything here is pure.
package layout

import (
	"errors"
	"fmt"
)

// ErrGeometry reports a layout that contradicts itself, its model or its memory.
var ErrGeometry = errors.New("layout: bad geometry")

// Rank numbers a worker inside one group, from 0.
type Rank int32

// Span is a half-open interval [Lo, Hi).
type Span struct{ Lo, Hi int32 }

// Len is the number of integers in s; negative spans are Empty.
func (s Span) Len() int32 { return s.Hi - s.Lo }

// Empty reports whether s holds nothing.
func (s Span) Empty() bool { return s.Hi <= s.Lo }

// Intersect returns the overlap of s and o, Empty if there is none.
func (s Span) Intersect(o Span) Span { return Span{max(s.Lo, o.Lo), min(s.Hi, o.Hi)} }

func (s Span) String() string { return fmt.Sprintf("[%d,%d)", s.Lo, s.Hi) }

// Box is a rectangle of one State: Layers x Units, global coordinates.
type Box struct{ Layers, Units Span }

// Empty reports whether b has no cell.
func (b Box) Empty() bool { return b.Layers.Empty() || b.Units.Empty() }

// Area is the number of (layer, unit) cells in b.
func (b Box) Area() int64 {
	if b.Empty() {
		return 0
	}
	return int64(b.Layers.Len()) * int64(b.Units.Len())
}

// Intersect returns the overlap of b and o, Empty if there is none.
func (b Box) Intersect(o Box) Box {
	return Box{b.Layers.Intersect(o.Layers), b.Units.Intersect(o.Units)}
}

func (b Box) String() string { return fmt.Sprintf("layers %v units %v", b.Layers, b.Units) }

// Paging says what one item of a State is.
type Paging uint8

const (
	// PerBlock: an item is a block of tokens (attention KV); a row is one token.
	PerBlock Paging = iota + 1
	// PerRequest: an item is the slot of one live request (conv, ssm); a row is one
	// window column of a convolution, or the single row of a recurrent state.
	PerRequest
)

// DType is the element type of a shard in memory.
type DType uint8

const (
	BF16 DType = iota + 1
	F16
	F32
	F8E4M3
	U8
)

// Size is the bytes of one element, 0 for an unknown type.
func (d DType) Size() int64 {
	switch d {
	case BF16, F16:
		return 2
	case F32:
		return 4
	case F8E4M3, U8:
		return 1
	}
	return 0
}

var dtypeNames = [...]string{BF16: "bf16", F16: "fp16", F32: "fp32", F8E4M3: "fp8_e4m3", U8: "u8"}

func (d DType) String() string {
	if int(d) < len(dtypeNames) && d > 0 {
		return dtypeNames[d]
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// ParseDType is the inverse of String; it also takes the usual long names.
func ParseDType(s string) (DType, error) {
	switch s {
	case "bf16", "bfloat16":
		return BF16, nil
	case "fp16", "f16", "float16", "half":
		return F16, nil
	case "fp32", "f32", "float32":
		return F32, nil
	case "fp8_e4m3", "fp8":
		return F8E4M3, nil
	case "u8", "uint8":
		return U8, nil
	}
	return 0, fmt.Errorf("%w: dtype %q: want bf16, fp16, fp32, fp8_e4m3 or u8", ErrGeometry, s)
}

// State is one logical tensor of the model. Both sides of a hand-off must state
// it equally; how many rows an item has and which dtype it is stored in belong
// to each side's Shard.
type State struct {
	Name   string // "attn.k", "attn.v", "attn.latent", "conv.x", "conv.b", "conv.c", "ssm"
	Paging Paging
	Layers int32 // layers of the model that carry this state, counted within the state
	Units  int32 // what a cut divides: KV heads, SSM heads, B/C groups; 1 for an MLA latent
	Elems  int32 // elements of one unit in one row: head_dim, headdim*d_state, ...
}

// Model is the geometry that both sides must agree on.
type Model struct{ States []State }

// View places a Box in memory. Strides are bytes between neighbours of one
// dimension; Elem is the stride between the elements of a unit (the dtype's size
// unless the engine keeps elements apart, as conv states [C, k] and transposed K do).
//
//	[2, L, B, T, H, d] bf16, plane V:  Off=L*B*T*H*d*2  Layer=B*T*H*d*2
//	                                   Item=T*H*d*2  Row=H*d*2  Unit=d*2  Elem=2
type View struct {
	Buffer                       uint32 // index into the rank's buffers
	Off                          int64  // byte of (first layer, item 0, row 0, first unit, element 0)
	Layer, Item, Row, Unit, Elem int64
}

// Shard is the part of one State that one rank holds.
type Shard struct {
	State int32 // index into Model.States
	Rank  Rank
	Box   Box
	Rows  int32 // rows of one item: tokens per block; window columns; 1
	Items int32 // blocks or slots that the buffer holds
	DType DType
	View  View
}
