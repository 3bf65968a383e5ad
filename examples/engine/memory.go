package engine

import (
	"fmt"

	"github.com/batonkv/baton/examples/engine/memfd"
	"github.com/batonkv/baton/examples/engine/model"
)

// newMemory makes a rank's buffers, each exactly as large as what it holds: paged K and
// V, paged latents, convolution windows, recurrent state. A model without a state has no
// buffer of it.
func newMemory(cfg Config, part model.Part) (bufs []memfd.Buffer, mem *model.Memory, err error) {
	defer func() {
		if err != nil {
			for _, b := range bufs {
				b.Close()
			}
		}
	}()
	sizes := cfg.Model.Bytes(part, cfg.sizes())
	var views [len(sizes)][]byte
	for i, n := range sizes {
		if n == 0 {
			continue
		}
		b, err := memfd.New(fmt.Sprintf("baton-%.40s-%d-%s", cfg.Group, cfg.Rank, model.BufferNames[i]), n)
		if err != nil {
			return bufs, nil, fmt.Errorf("engine: %w", err)
		}
		bufs, views[i] = append(bufs, b), b.Mem
	}
	mem, err = model.NewMemory(cfg.Model, part, cfg.sizes(), views)
	return bufs, mem, err
}
