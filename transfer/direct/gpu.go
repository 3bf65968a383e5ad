package direct

import (
	"context"
	"fmt"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

// attached reports whether buffer id of bs is there.
func attached(bs transfer.Buffers, id uint32) bool {
	return uint64(id) < uint64(len(bs)) && bs[id].Len > 0
}

// isGPU reports whether buffer id of bs is a GPU's.
func isGPU(bs transfer.Buffers, id uint32) bool {
	return uint64(id) < uint64(len(bs)) && bs[id].GPU
}

// onGPU reports whether n touches GPU memory.
func onGPU(n *lower.Nest, src, dst transfer.Buffers) bool {
	return isGPU(dst, n.Dst) || n.From != 0 && isGPU(src, n.Src)
}

// copy hands the nests of GPU memory to the device and the others to the copier.
func (b *Backend) copy(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	on := 0
	for i := range ns {
		n := &ns[i]
		if !onGPU(n, src, dst) {
			continue
		}
		on++
		if n.From != 0 && isGPU(src, n.Src) != isGPU(dst, n.Dst) && attached(src, n.Src) && attached(dst, n.Dst) {
			return 0, fmt.Errorf("%w: source buffer %d and destination buffer %d: one is on a GPU and the other on the host: stage it", transfer.ErrMemory, n.Src, n.Dst)
		}
	}
	switch on {
	case 0:
		return b.copier.Copy(ctx, ns, src, dst)
	case len(ns):
		return b.device.Copy(ctx, ns, src, dst)
	}
	host, gpu := make([]lower.Nest, 0, len(ns)-on), make([]lower.Nest, 0, on)
	for i := range ns {
		if onGPU(&ns[i], src, dst) {
			gpu = append(gpu, ns[i])
		} else {
			host = append(host, ns[i])
		}
	}
	done, err := b.copier.Copy(ctx, host, src, dst)
	if err != nil {
		return done, err
	}
	n, err := b.device.Copy(ctx, gpu, src, dst)
	return done + n, err
}
