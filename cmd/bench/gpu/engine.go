//go:build cgo

package gpu

import (
	"context"
	"errors"
	"sync"

	"github.com/batonkv/baton/cmd/bench"
	"github.com/batonkv/baton/kernels/dma"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

// tap is a Device that remembers what was mapped, so that its Copier can be called without
// the backend. Buffers of one side are of one size, so that their order is nothing to the time.
type tap struct {
	*dma.Device
	src, dst transfer.Buffers
}

func (p *tap) Map(m transfer.Memory, write bool) (transfer.Mapped, func() error, error) {
	at, unmap, err := p.Device.Map(m, write)
	if err == nil && write {
		p.dst = append(p.dst, at)
	} else if err == nil {
		p.src = append(p.src, at)
	}
	return at, unmap, err
}

// engine measures a copier alone: from a job's tables to the end of its copies, over memory
// of other processes. More than one thread share its nests.
func (r *rig) engine(ctx context.Context, cfg dma.Config, threads int, x shape, res bench.Result) (_ bench.Result, c dma.Counts, err error) {
	b, d, err := r.inProcess(cfg)
	if err != nil {
		return res, c, err
	}
	defer func() { err = errors.Join(err, b.Close(ctx), d.Close()) }()
	return r.engineOf(ctx, b, d, threads, x, res)
}

// engineOf is engine with a copier that has copied before, as a mover's has.
func (r *rig) engineOf(ctx context.Context, b transfer.Backend, d *tap, threads int, x shape, res bench.Result) (_ bench.Result, c dma.Counts, err error) {
	d.src, d.dst = nil, nil
	before := d.Counts()
	var ns []lower.Nest
	res, err = r.measureBy(ctx, b, x, res, func(ctx context.Context, s *scene) (float64, error) {
		return timed(func() (err error) {
			if ns, err = s.t.Nests(ns[:0], s.j); err != nil {
				return err
			}
			return parts(ns, threads, func(ns []lower.Nest) error {
				_, err := d.Copy(ctx, ns, d.src, d.dst)
				return err
			})
		})
	})
	c = d.Counts()
	return res, dma.Counts{Jobs: c.Jobs - before.Jobs, Calls: c.Calls - before.Calls, Batched: c.Batched - before.Batched}, err
}

// parts runs f on n parts of ns at once.
func parts(ns []lower.Nest, n int, f func([]lower.Nest) error) error {
	if n == 1 {
		return f(ns)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(ns[len(ns)*i/n : len(ns)*(i+1)/n]) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
