package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/bench/measure"
	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged/nixl"
)

// longPrompt is 4096 tokens of a model with 32 layers of 8 KV heads: 512 MiB.
var longPrompt = loadShape{layers: 32, units: 8, elems: 256, block: 64, blocks: 64, tokens: 4096}

// stagingCase is a backend, and what it is compared with.
type stagingCase struct {
	name, backend string
	shape         loadShape
	tp            int32 // of the readers
	unit          string
	flat          func(ctx context.Context, o Options, p *loads) (flat, error)
	target        float64
}

// flat moves bytes without Baton: as many as the request has, or a share of them.
type flat struct {
	bytes int64
	what  string // in the row's note
	move  func() (time.Duration, error)
	close func() error
}

// staging measures hand-offs of a long prompt, whole, from Export to the answer of Import:
// packed, brought over and unpacked by the movers of sidecars that map nothing of each
// other. In turn with each, as many bytes move flat.
func staging(ctx context.Context, o Options) (out []Result, err error) {
	hop, err := moverHop(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("mover-hop: %w", err)
	}
	out = append(out, hop)
	cases := []stagingCase{
		{"tcp-tls", "tcp", longPrompt, 1, "x of a flat TCP+TLS stream", flatStream(true), 0.8},
		{"tcp-tls-tp1-to-tp2", "tcp", longPrompt, 2, "x of a flat TCP+TLS stream", flatStream(true), 0.8},
		{"tcp-plain", "tcp-plain", longPrompt, 1, "x of a flat TCP stream", flatStream(false), 0.9},
	}
	if _, err := nixl.DefaultOptions().Found(ctx); err != nil {
		o.Progress("staging: nothing over NIXL: " + err.Error())
	} else {
		cases = append(cases, stagingCase{"nixl", "nixl", longPrompt, 1, "x of one flat NIXL descriptor", flatNIXL, 0.8},
			stagingCase{"nixl-tcp", "nixl", longPrompt, 1, "x of one flat NIXL descriptor", flatNIXL, 0.8})
	}
	rows, err := measureAll(ctx, o, cases)
	return append(out, rows...), err
}

// measureAll leaves out what this host's NIXL cannot do.
func measureAll(ctx context.Context, o Options, cases []stagingCase) (out []Result, err error) {
	for _, c := range cases {
		o.Progress("staging: " + c.name)
		r, err := c.measured(ctx, o)
		if err != nil && c.backend == "nixl" && ctx.Err() == nil { // this host may lack what its library needs
			o.Progress("staging: no row " + c.name + ": " + err.Error())
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		out = append(out, AtLeast(r, c.target))
	}
	return out, nil
}

// measured is measure with what NIXL may use: processes of one host read each other's memory
// unless UCX is told that there is TCP alone, which wire movers inherit.
func (c stagingCase) measured(ctx context.Context, o Options) (Result, error) {
	if !strings.HasSuffix(c.name, "nixl-tcp") {
		return c.measure(ctx, o)
	}
	const name = "UCX_TLS"
	old, was := os.LookupEnv(name)
	if err := os.Setenv(name, "tcp"); err != nil {
		return Result{}, err
	}
	r, err := c.measure(ctx, o)
	if was {
		return r, errors.Join(err, os.Setenv(name, old))
	}
	return r, errors.Join(err, os.Unsetenv(name))
}

// measure takes hand-offs and flat moves in turn.
func (c stagingCase) measure(ctx context.Context, o Options) (r Result, err error) {
	r = Result{Name: "staging/" + c.name, Unit: c.unit, BaseUnit: "GB/s",
		What: fmt.Sprintf("hand-off of %d tokens, %d MiB, TP1 to TP%d, %s", c.shape.tokens, c.shape.bytes()>>20, c.tp, c.backend)}
	p, err := pairOfLoads(ctx, dev.Options{Binary: o.Binary, Backend: c.backend}, c.tp, c.shape)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	f, err := c.flat(ctx, o, p)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	var rates []float64
	for i := range o.Rounds + 1 {
		flat, err := f.move()
		if err != nil {
			return r, err
		}
		whole, err := p.handOff(ctx)
		if err != nil {
			return r, err
		}
		if i == 0 {
			continue // the first of each pays for connections, caches and page tables
		}
		without, with := float64(f.bytes)/flat.Seconds()/1e9, float64(c.shape.bytes())/whole.Seconds()/1e9
		r.Samples, r.Baseline, rates = append(r.Samples, with/without), append(r.Baseline, without), append(rates, with)
	}
	r.Note = fmt.Sprintf("%.1f GB/s, %s", Median(rates), fmt.Sprintf(f.what, Median(r.Baseline)))
	return r, ctx.Err()
}

// flatStream is one stream of this process over loopback.
func flatStream(secure bool) func(context.Context, Options, *loads) (flat, error) {
	return func(_ context.Context, _ Options, p *loads) (flat, error) {
		s, err := openStream(secure)
		if err != nil {
			return flat{}, err
		}
		from := p.src[0].mem
		to := make([]byte, len(from))
		return flat{int64(len(from)), "flat %.1f", func() (time.Duration, error) { return s.move(to, from) }, s.close}, nil
	}
}

// flatNIXL is one descriptor between two wire movers.
func flatNIXL(ctx context.Context, o Options, p *loads) (flat, error) {
	lib, err := nixl.DefaultOptions().Found(ctx)
	if err != nil {
		return flat{}, err
	}
	e := p.src[0]
	fd, mem, err := measure.Memory(int64(len(e.mem)))
	if err != nil {
		return flat{}, err
	}
	memory := func(fd int) transfer.Memory {
		return transfer.Memory{Kind: transfer.Memfd, FD: fd, Len: int64(len(mem))}
	}
	free := func() error { return errors.Join(unix.Munmap(mem), unix.Close(fd)) }
	d, err := openDescriptor(ctx, o, lib, memory(e.fd), memory(fd))
	if err != nil {
		return flat{}, errors.Join(err, free())
	}
	return flat{int64(len(mem)), "flat %.1f", d.move, func() error { return errors.Join(d.close(), free()) }}, nil
}
