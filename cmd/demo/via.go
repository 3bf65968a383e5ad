package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// ViaPlugin has an external process place the requests, by the plugin alone.
const ViaPlugin = "plugin"

// ErrAbort says that an aborted import did not end as it must.
var ErrAbort = errors.New("the aborted import")

// external is a control plane in a process of its own: it is told the plugin's command
// line, and requests as a client would send them.
type external struct {
	child   *lifeline.Child
	orders  io.WriteCloser
	reports chan report
	ended   chan struct{} // closed when it reports no more
}

// launch starts the external control plane.
func (d *demo) launch() (*external, error) {
	o := d.opt.Dev
	cmd := exec.Command(o.Binary, "demo", "router", "--", o.Binary, "plugin", "--config", d.cluster.Control(), "--log-level", o.LogLevel)
	cmd.Stderr = o.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	x := &external{orders: in, reports: make(chan report, 64), ended: make(chan struct{})}
	if x.child, err = lifeline.Start(cmd); err != nil {
		return nil, fmt.Errorf("the external control plane: %w", err)
	}
	go func() { // ends with the child
		defer close(x.ended)
		for dec := json.NewDecoder(out); ; {
			var r report
			if dec.Decode(&r) != nil {
				return
			}
			x.reports <- r
		}
	}()
	return x, nil
}

// close has the process end: it has no more orders.
func (x *external) close() error {
	x.orders.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		select {
		case <-x.reports: // of nobody's order any more
		case <-x.ended:
			return x.child.Stop(ctx)
		case <-ctx.Done():
			return x.child.Stop(ctx)
		}
	}
}

// next is the next report of a label; those of orders that were given up are passed over.
func (x *external) next(ctx context.Context, label string) (report, error) {
	for {
		select {
		case r := <-x.reports:
			if r.Label != label {
				continue
			}
			if r.Step == stepFailed {
				return r, fmt.Errorf("the external control plane: %s", r.Why)
			}
			return r, nil
		case <-x.ended:
			return report{}, fmt.Errorf("the external control plane ended: %v", x.child.Err())
		case <-ctx.Done():
			return report{}, context.Cause(ctx)
		}
	}
}

// place gives the external control plane an order; the first report says where it goes.
func (d *demo) place(ctx context.Context, o order) (*dev.Running, error) {
	o.Deadline = d.opt.Deadline
	if err := json.NewEncoder(d.external.orders).Encode(o); err != nil {
		return nil, fmt.Errorf("the external control plane: %w", err)
	}
	r, err := d.external.next(ctx, o.Label)
	if err != nil {
		return nil, err
	}
	for _, g := range d.decode {
		if g.Name == r.Group {
			return g, nil
		}
	}
	return nil, fmt.Errorf("the external control plane chose %s, which is no decode group of the demo", r.Group)
}

// maxAborts bounds how often an import is begun to be aborted: one may be through before
// the word to end it.
const maxAborts = 20

// aborted has an import aborted by the external control plane, and asks the source itself
// what became of it. An import that was quicker is a request like others.
func (d *demo) abort(ctx context.Context, p prompt) (row, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.opt.Deadline, fmt.Errorf("not done within --deadline %v", d.opt.Deadline))
	defer cancel()
	src := d.prefill[0]
	for n := 1; n <= maxAborts; n++ {
		r := row{prompt: p, src: src, label: fmt.Sprintf("a%d", n), blockTokens: d.opt.Dev.BlockTokens}
		res, err := generate(ctx, src, front.Request{Tokens: p.tokens, MaxNew: d.opt.MaxNew, Label: r.label, Mode: front.Export}, nil)
		if err != nil {
			return r, fmt.Errorf("prefill on %s: %w", src.Name, err)
		}
		if r.dst, err = d.place(ctx, order{Label: r.label, Tokens: p.tokens, Abort: true}); err != nil {
			return r, err
		}
		rep, err := d.external.next(ctx, r.label)
		if err != nil {
			return r, err
		}
		if rep.Step == stepImported { // its tokens are nobody's: it is decoded and forgotten
			if _, err := generate(ctx, r.dst, front.Request{MaxNew: 1, Label: r.label, Mode: front.Adopt}, nil); err != nil {
				return r, fmt.Errorf("decode on %s: %w", r.dst.Name, err)
			}
			continue
		}
		if !rep.Held {
			return r, fmt.Errorf("%w: %s did not hold it any more", ErrAbort, src.Name)
		}
		return r, d.released(ctx, src, res.Manifest.ID)
	}
	return row{}, fmt.Errorf("%w: %d of them were admitted before the word to end them", ErrAbort, maxAborts)
}

// released waits until a source has given a hand-off's memory back.
func (d *demo) released(ctx context.Context, src *dev.Running, id handoff.ID) error {
	for {
		info, err := src.Leader.Get(ctx, id)
		if errors.Is(err, handoff.ErrUnknown) || err == nil && info.Phase == control.Ended {
			return nil
		}
		if err != nil {
			return err
		}
		if pause.For(ctx, time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("%w: %s keeps it: %w", ErrAbort, src.Name, context.Cause(ctx))
		}
	}
}
