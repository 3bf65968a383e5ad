//go:build !cgo

package gpu

import (
	"context"

	"github.com/batonkv/baton/cmd/bench"
)

type rig struct{}

// Run fails: this build has no C.
func Run(context.Context, Options) (bench.Report, error) {
	_ = row{}
	return bench.Report{}, ErrBuild
}

// Own fails: this build has no C.
func Own() error { return ErrBuild }
