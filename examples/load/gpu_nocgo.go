//go:build !cgo

package load

import "fmt"

func onGPU(cfg Config, _ []int64) ([]buffer, func(), error) {
	return nil, nil, fmt.Errorf("%w: memory %q: this build has no C: build with CGO_ENABLED=1", ErrConfig, cfg.Memory)
}
