//go:build cgo

package gpu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/batonkv/baton/cmd/bench"
	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/kernels/cuda/owner"
	"github.com/batonkv/baton/kernels/dma"
	"github.com/batonkv/baton/kernels/rows"
	"github.com/batonkv/baton/transfer/direct"
	"github.com/batonkv/baton/transfer/mover"
)

// Own is the whole life of a process that owns GPU memory.
func Own() error { return owner.Serve() }

// rig is two GPUs: GPU 1 pulls from GPU 0.
type rig struct {
	o      Options
	driver *cuda.Driver
	gpus   [2]*cuda.Context
	owners [2]*owner.Owner
	flat   int64 // bytes of the baseline
	from   uint64
	to     uint64
	lane   *cuda.Lane // of GPU 1
	mover  *mover.Mover
	direct *direct.Backend // of the rows of the copier; nil before the first
	tap    *tap            // its device
}

// Run measures every row.
func Run(ctx context.Context, o Options) (bench.Report, error) {
	if o.Shrink == 0 {
		o.Shrink = 1
	}
	rep := bench.Report{Date: time.Now().UTC().Format("2006-01-02"), Go: runtime.Version(), Cores: runtime.NumCPU(),
		Commit: commit(), Binary: digest(o.Binary)}
	r := &rig{o: o, flat: 1 << 30 / int64(o.Shrink)}
	err := r.open(ctx)
	if err == nil {
		g := r.driver.Devices()
		rep.CPU = fmt.Sprintf("2 of %d %s, CUDA %s, %s", len(g), g[0].Name, cuda.Version(r.driver.Version()), bench.CPU())
		err = r.rows(ctx, &rep)
	}
	return rep, errors.Join(err, r.close(ctx))
}

func (r *rig) rows(ctx context.Context, rep *bench.Report) error {
	chosen := lines(r.o)
	if len(chosen) == 0 {
		return fmt.Errorf("bench gpu: no row's name begins with one of %q: rows are gpu/memcpy-peer, gpu/consecutive, gpu/scattered, gpu/fragments, gpu/one-block, gpu/pull, gpu/stand-ins and gpu/host", r.o.Only)
	}
	for _, x := range chosen {
		r.o.Progress(x.name)
		rs, err := x.run(ctx, r)
		if err != nil { // the other rows are worth having all the same
			r.o.Progress(fmt.Sprintf("%s: %v", x.name, err))
			if errors.Is(err, cuda.ErrLost) || ctx.Err() != nil {
				return err
			}
		}
		rep.Rows = append(rep.Rows, rs...)
		if err := r.o.Save(*rep); err != nil {
			return err
		}
	}
	if len(rep.Rows) == 0 {
		return errors.New("bench gpu: no row could be measured")
	}
	return nil
}

func commit() string {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

func digest(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (r *rig) open(ctx context.Context) (err error) {
	var names []string
	if r.o.Driver != "" {
		names = []string{r.o.Driver}
	}
	if r.driver, err = cuda.Open(names...); err != nil {
		return err
	}
	if n := len(r.driver.Devices()); n < 2 {
		return fmt.Errorf("%w: two are needed, and there are %d", cuda.ErrGPU, n)
	}
	if err := r.driver.Reaches(1, 0); err != nil {
		return err
	}
	for i := range r.gpus {
		if r.gpus[i], err = r.driver.Context(i); err != nil {
			return err
		}
	}
	if err := r.gpus[1].EnablePeer(r.gpus[0]); err != nil {
		return err
	}
	if r.from, err = r.gpus[0].Alloc(r.flat); err != nil {
		return err
	}
	if r.to, err = r.gpus[1].Alloc(r.flat); err != nil {
		return err
	}
	if r.lane, err = r.gpus[1].Lane(1); err != nil {
		return err
	}
	for i := range r.owners {
		if r.owners[i], err = owner.Start(exec.CommandContext(ctx, r.o.Binary, "bench", "gpu", "owner")); err != nil {
			return err
		}
	}
	r.mover, err = mover.Start(mover.Config{Command: []string{r.o.Binary, "mover"}})
	return err
}

func (r *rig) close(ctx context.Context) error {
	var errs []error
	if r.mover != nil {
		errs = append(errs, r.mover.Close(ctx))
	}
	if r.direct != nil {
		errs = append(errs, r.direct.Close(ctx), r.tap.Close())
	}
	for _, o := range r.owners {
		if o != nil {
			errs = append(errs, o.Close())
		}
	}
	if r.lane != nil {
		errs = append(errs, r.lane.Close())
	}
	for i, at := range []uint64{r.from, r.to} {
		if at != 0 {
			errs = append(errs, r.gpus[i].Free(at))
		}
	}
	for _, g := range r.gpus {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	return errors.Join(errs...)
}

// memcpy is one flat copy between the GPUs in this process, in seconds.
func (r *rig) memcpy() (float64, error) {
	p := cuda.Program{Ops: []cuda.Op{{Src: r.from, Dst: r.to, Width: uint64(r.flat), Height: 1, Depth: 1}}}
	return timed(func() error { return errors.Join(r.lane.Submit(&p), r.lane.Wait(dma.Expect(r.flat))) })
}

func timed(f func() error) (float64, error) {
	t := time.Now()
	err := f()
	return time.Since(t).Seconds(), err
}

// inProcess is a backend that copies in this process, with a Copier of its own.
func (r *rig) inProcess(cfg dma.Config) (*direct.Backend, *tap, error) {
	var names []string
	if r.o.Driver != "" {
		names = []string{r.o.Driver}
	}
	host, err := rows.New(rows.Config{})
	if err != nil {
		return nil, nil, err
	}
	d, err := dma.NewDevice(cfg, names...)
	if err != nil {
		return nil, nil, err
	}
	t := &tap{Device: d}
	b, err := direct.New(direct.Config{Copier: host, Device: t, Workers: 1})
	return b, t, err
}
