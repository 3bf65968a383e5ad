//go:build cgo

package rows

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/batonkv/baton/kernels/rows/plain"
)

// isa is an instruction set of shim.h.
type isa C.int32_t

func (i isa) String() string {
	switch i {
	case C.ROWS_PLAIN:
		return "plain"
	case C.ROWS_AVX2:
		return "avx2"
	case C.ROWS_AVX512:
		return "avx512"
	}
	return fmt.Sprintf("isa(%d)", i)
}

func best() isa { return isa(C.rows_best()) }

// isas are the instruction sets that this machine has, slowest first.
func isas() (all []isa) {
	for i := isa(C.ROWS_PLAIN); i <= best(); i++ {
		all = append(all, i)
	}
	return all
}

// The two declarations of each op must have one layout: a difference does not compile.
var (
	_ [unsafe.Sizeof(plain.Op{}) - unsafe.Sizeof(C.struct_rows_op{})]byte
	_ [unsafe.Sizeof(C.struct_rows_op{}) - unsafe.Sizeof(plain.Op{})]byte
	_ [unsafe.Offsetof(plain.Op{}.Dims) - unsafe.Offsetof(C.struct_rows_op{}.dim)]byte
	_ [unsafe.Sizeof(plain.SumOp{}) - unsafe.Sizeof(C.struct_rows_sum{})]byte
	_ [unsafe.Sizeof(C.struct_rows_sum{}) - unsafe.Sizeof(plain.SumOp{})]byte
	_ [unsafe.Offsetof(plain.SumOp{}.Slot) - unsafe.Offsetof(C.struct_rows_sum{}.slot)]byte
)

// exec runs checked ops in one call into C.
func exec(i isa, ops []plain.Op, stream bool) {
	if len(ops) == 0 {
		return
	}
	var s C.int32_t
	if stream {
		s = 1
	}
	if rc := C.rows_exec((*C.struct_rows_op)(unsafe.Pointer(&ops[0])), C.int64_t(len(ops)), C.int32_t(i), s); rc != 0 {
		plain.Exec(ops) // an instruction set that this CPU lacks: the bytes still arrive
	}
}

// sum runs checked ops in one call into C.
func sum(i isa, ops []plain.SumOp, blocks []int32, out []uint64) {
	if len(ops) == 0 {
		return
	}
	rc := C.rows_sums((*C.struct_rows_sum)(unsafe.Pointer(&ops[0])), C.int64_t(len(ops)), (*C.int32_t)(unsafe.Pointer(unsafe.SliceData(blocks))),
		(*C.uint64_t)(unsafe.Pointer(&out[0])), C.int32_t(i))
	if rc != 0 {
		plain.Sum(ops, blocks, out) // an instruction set that this CPU lacks
	}
}

// flat is one memcpy.
func flat(dst, src uint64, n int64) {
	C.rows_memcpy(C.uint64_t(dst), C.uint64_t(src), C.int64_t(n))
}
