package direct

import (
	"context"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

// isGPU reports whether buffer id of bs is a GPU's.
func isGPU(bs transfer.Buffers, id uint32) bool {
	return uint64(id) < uint64(len(bs)) && bs[id].GPU
}

// way is who copies a nest.
type way uint8

const (
	byHost   way = iota // the copier
	byDevice            // the device: an end is on a GPU
	byBounce            // both, through host memory between: an end is on a GPU, and types differ
	ways
)

func wayOf(n *lower.Nest, src, dst transfer.Buffers) way {
	switch {
	case !isGPU(dst, n.Dst) && (n.From == 0 || !isGPU(src, n.Src)):
		return byHost
	case n.From != 0 && n.From != n.To:
		return byBounce
	}
	return byDevice
}

// by copies nests that go one way.
func (b *Backend) by(ctx context.Context, w way, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	switch w {
	case byDevice:
		return b.device.Copy(ctx, ns, src, dst)
	case byBounce:
		return b.convert(ctx, ns, src, dst)
	}
	return b.copier.Copy(ctx, ns, src, dst)
}

// copy hands each nest to who copies it.
func (b *Backend) copy(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	var count [ways]int
	for i := range ns {
		count[wayOf(&ns[i], src, dst)]++
	}
	for w := range ways {
		if count[w] == len(ns) {
			return b.by(ctx, w, ns, src, dst)
		}
	}
	var parts [ways][]lower.Nest
	for i := range ns {
		w := wayOf(&ns[i], src, dst)
		parts[w] = append(parts[w], ns[i])
	}
	var done int64
	for w, part := range parts {
		if len(part) == 0 {
			continue
		}
		n, err := b.by(ctx, way(w), part, src, dst)
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}
