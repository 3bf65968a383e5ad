// Package gpu measures copies between two GPUs beside one large copy between them, in one
// run. Memory is owned by processes of their own, as engines own theirs, and pulled by a mover.
package gpu

import (
	"context"
	"errors"

	"github.com/batonkv/baton/cmd/bench"
)

// ErrBuild reports a build without C.
var ErrBuild = errors.New("bench gpu: this baton was built without cgo")

// Options is what to measure and how long.
type Options struct {
	Rounds int
	Binary string // this executable, which is also the mover and the owners
	// Variants measures each way of submitting copies, in place of the rows.
	Variants bool
	// Shrink divides the sizes of everything, for a test of the bench itself. 0: 1.
	Shrink int32
	// Progress hears what is being measured.
	Progress func(what string)
	// Save gets what there is after each row, so that a run that is cut short is not lost.
	Save func(bench.Report) error
	// Driver is a file to load instead of libcuda.so.1 in this process. "": that.
	Driver string
}

// row is one line of the bench.
type row struct {
	name string
	run  func(ctx context.Context, r *rig) ([]bench.Result, error)
}
