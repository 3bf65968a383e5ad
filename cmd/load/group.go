package load

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	engine "github.com/batonkv/baton/examples/load"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// group is one engine instance with what its rank 0 tells.
type group struct {
	*dev.Running
	eng    *engine.Client
	ranks  []*lifeline.Child
	blocks int32
	slots  int32
	block  int32 // tokens of a block

	mu    sync.Mutex // guards:
	boxes map[string]*box
	wrong []string // what the engine found wrong
}

// box is what came for one label, a channel for each kind. Labels are used once, so that
// each kind comes few times.
type box struct {
	announced                        chan handoff.Manifest
	exported, freed, ended           chan engine.Event
	imported, failed, admitted, held chan engine.Event
}

func newBox() *box {
	ch := func() chan engine.Event { return make(chan engine.Event, 8) }
	return &box{announced: make(chan handoff.Manifest, 8), exported: ch(), freed: ch(), ended: ch(),
		imported: ch(), failed: ch(), admitted: ch(), held: ch()}
}

func (b *box) of(k engine.EventKind) chan engine.Event {
	switch k {
	case engine.Exported:
		return b.exported
	case engine.Freed:
		return b.freed
	case engine.Ended:
		return b.ended
	case engine.Imported:
		return b.imported
	case engine.Failed:
		return b.failed
	case engine.Admitted:
		return b.admitted
	case engine.Held:
		return b.held
	}
	return nil
}

// box returns a label's.
func (g *group) box(label string) *box {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.boxes[label]
	if b == nil {
		b = newBox()
		g.boxes[label] = b
	}
	return b
}

// forget drops a label's box: nothing more is expected of it.
func (g *group) forget(label string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.boxes, label)
}

// hear sorts an event of rank 0 in.
func (g *group) hear(e engine.Event) {
	if e.Kind == engine.Wrong {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.wrong = append(g.wrong, g.Name+": "+e.Err)
		return
	}
	if ch := g.box(e.Label).of(e.Kind); ch != nil {
		select {
		case ch <- e:
		default: // more of a kind than any request causes: who waits has one
		}
	}
}

// watch passes on the manifests of announced hand-offs, until ctx ends.
func (g *group) watch(ctx context.Context) {
	var from control.Cursor
	for ctx.Err() == nil {
		for n, err := range g.Leader.Watch(ctx, from) {
			if err != nil { // its sidecar is being started again
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
				}
				break
			}
			from = n.After()
			if n.Kind == control.Announced {
				select {
				case g.box(n.Label).announced <- *n.Manifest:
				default:
				}
			}
		}
	}
}

// orders vary how engines nest their caches, blocks how many tokens a block has.
var (
	orders = []string{"planes", "block-major", "layer-blocks", "layer-planes"}
	blocks = []int32{16, 32, 8}
)

// start starts a rank of the load engine beside its sidecar in dir.
func (d *driver) start(g *group, rank int32, dir string) error {
	meet := filepath.Dir(dir)
	i := len(d.groups) - 1
	args := []string{"load", "rank", "--group", g.Name, "--instance", strconv.FormatUint(g.Instance, 16), "--rank", strconv.Itoa(int(rank)),
		"--tp", strconv.Itoa(int(g.TP)), "--run-dir", dir, "--rendezvous", filepath.Join(meet, g.Name+".0"), "--model", string(d.opt.Model),
		"--order", orders[i%len(orders)], "--blocks", strconv.Itoa(int(g.blocks)), "--slots", strconv.Itoa(int(g.slots)),
		"--block-tokens", strconv.Itoa(int(g.block)), "--log-level", d.opt.Dev.LogLevel, "--log-format", d.opt.Dev.LogFormat}
	memory := d.opt.Decode
	if g.Role == discovery.Prefill {
		memory = d.opt.Prefill
	}
	if memory != "" {
		args = append(args, "--memory", string(memory))
	}
	if rank == 0 {
		args = append(args, "--driver", g.socket(meet))
	}
	if d.opt.Damage {
		args = append(args, "--damage")
	}
	if d.opt.Parts && g.Role == discovery.Prefill {
		args = append(args, "--export-parts")
	}
	cmd := exec.Command(d.opt.Dev.Binary, args...)
	cmd.Stderr = d.opt.Dev.Stderr
	child, err := lifeline.Start(cmd)
	if err != nil {
		return fmt.Errorf("load engine %s/%d: %w", g.Name, rank, err)
	}
	g.ranks = append(g.ranks, child)
	go func() { // ends with the child, which close waits for
		<-child.Exited()
		d.died(fmt.Errorf("load engine %s/%d ended by itself: %v; it said:\n%s", g.Name, rank, child.Err(), child.Stderr()))
	}()
	return nil
}

func (g *group) socket(meet string) string { return filepath.Join(meet, g.Name+".0", "drive.sock") }

// connect waits for the ranks and dials rank 0.
func (d *driver) connect(ctx context.Context, g *group, meet string) error {
	for rank, c := range g.ranks {
		var ready struct{}
		if err := c.AwaitReady(ctx, &ready); err != nil {
			return fmt.Errorf("load engine %s/%d: %w", g.Name, rank, err)
		}
	}
	var err error
	if g.eng, err = engine.Dial(ctx, g.socket(meet)); err != nil {
		return err
	}
	go func() { // ends with the engine or with close
		if err := g.eng.Events(g.hear); err != nil {
			d.died(err)
		}
	}()
	go g.watch(ctx)
	return nil
}

func (g *group) close(ctx context.Context) (errs error) {
	if g.eng != nil {
		g.eng.Close()
	}
	for _, c := range g.ranks {
		errs = errors.Join(errs, c.Stop(ctx))
	}
	return errs
}

// holding asks rank 0 what the group's ranks hold.
func (g *group) holding(ctx context.Context) (engine.Holding, error) {
	const label = "stats" // no request has it
	b := g.box(label)
	if err := g.eng.Send(engine.Command{Op: engine.Stats, Label: label}); err != nil {
		return engine.Holding{}, err
	}
	select {
	case e := <-b.held:
		return *e.Holding, nil
	case <-ctx.Done():
		return engine.Holding{}, context.Cause(ctx)
	}
}
