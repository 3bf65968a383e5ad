//go:build !cgo

package rows

import "github.com/batonkv/baton/kernels/rows/plain"

// isa has one value without C.
type isa int32

func (isa) String() string { return "go" }

func best() isa   { return 0 }
func isas() []isa { return []isa{0} }

// exec runs checked ops.
func exec(_ isa, ops []plain.Op, _ bool) { plain.Exec(ops) }

// sum runs checked ops.
func sum(_ isa, ops []plain.SumOp, blocks []int32, out []uint64) { plain.Sum(ops, blocks, out) }

// flat is one copy.
func flat(dst, src uint64, n int64) { copy(plain.Bytes(dst, n), plain.Bytes(src, n)) }
