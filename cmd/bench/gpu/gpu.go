// Package gpu measures copies between two GPUs beside one large copy between them, in one
// run. Memory is owned by processes of their own, as engines own theirs, and pulled by a mover.
package gpu

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	// Only keeps the rows whose names begin with one of these. nil: all.
	Only []string
	// Every has a hand-off of Tokens begin each time it has passed, for as long as For, in
	// place of the rows, so that an engine beside it can be watched. 0: the rows.
	Every, For time.Duration
	Tokens     int32
	// Shrink divides the sizes of everything, for a test of the bench itself. 0: 1.
	Shrink int32
	// Progress hears what is being measured.
	Progress func(what string)
	// Save gets what there is after each row, so that a run that is cut short is not lost.
	Save func(bench.Report) error
	// Driver is a file to load instead of libcuda.so.1 in this process. "": that.
	Driver string
}

// Check reports Options that nobody can mean.
func (o Options) Check() error {
	switch {
	case o.Every < 0 || o.Every > 0 && o.For <= 0:
		return fmt.Errorf("--every %v --for %v: want no negative interval, and a time", o.Every, o.For)
	case o.Tokens < blockTokens || o.Tokens > 1<<17 || o.Tokens%blockTokens != 0:
		return fmt.Errorf("--tokens %d: want whole blocks of %d, up to %d", o.Tokens, blockTokens, 1<<17)
	}
	return nil
}

// blockTokens are those of a block of the 70B layout.
const blockTokens = 64

// row is one line of the bench.
type row struct {
	name string
	run  func(ctx context.Context, r *rig) ([]bench.Result, error)
}
