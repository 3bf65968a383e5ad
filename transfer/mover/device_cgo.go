//go:build cgo

package mover

import (
	"fmt"
	"os"

	"github.com/batonkv/baton/kernels/dma"
	"github.com/batonkv/baton/transfer/direct"
)

// newDevice loads no driver yet: most movers see no GPU memory.
func newDevice() (direct.Device, error) {
	return dma.NewDevice(dma.Config{Warn: func(err error) { fmt.Fprintln(os.Stderr, err) }})
}
