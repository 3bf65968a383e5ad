package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	engine "github.com/batonkv/baton/examples/load"
)

// driver is one run's state.
type driver struct {
	opt             Options
	cluster         *dev.Cluster
	groups          []*group
	prefill, decode []*group
	stop            context.CancelCauseFunc // of the run
	began           time.Time
	// early bounds the imports that wait for an export: each has a place in decode's queue
	// while its prompt waits for memory that others in that queue would give back.
	early chan struct{}

	mu      sync.Mutex // guards:
	closing bool
	counts  map[string]*tally // by kind of request
	done    int
	moved   int64
	by      map[string]bool // transports
	late    int             // imports that began while their prompt was computed
	killed  int             // movers
	ended   int             // sidecars
	cut     int             // requests that the kill of a sidecar ended
	retried int             // imports tried again after a kill
}

// tally is what became of the requests of one kind.
type tally struct {
	requests, imports, refused int // refused: imports that ended by an error that their kind may meet
}

// Run brings the groups up, runs the requests and prints what became of them. The error
// is ErrWrong, ErrLeaked or ErrUnexpected when Baton broke a promise.
func Run(ctx context.Context, opt Options, out io.Writer) (err error) {
	if err := opt.Check(); err != nil {
		return err
	}
	opt = opt.defaults()
	if opt.Dev, err = opt.Dev.Defaults(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	d := &driver{opt: opt, stop: stop, began: time.Now(), early: make(chan struct{}, maxImports/3), counts: map[string]*tally{}, by: map[string]bool{}}
	defer func() {
		if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
	}()
	opt.Dev.Engine, opt.Dev.Imports = d.engine, maxImports
	opt.Dev.Restart = opt.KillSidecars > 0
	if d.cluster, err = dev.Up(ctx, opt.Dev); err != nil {
		return errors.Join(err, d.close())
	}
	defer func() { err = errors.Join(err, d.close()) }()
	go func() { // ends with ctx
		select {
		case err := <-d.cluster.Died():
			stop(err)
		case <-ctx.Done():
		}
	}()
	for _, g := range d.groups {
		if err := d.connect(ctx, g, d.cluster.Dir); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "seed %d: %d requests, model %s, up in %.1f s\n", opt.Seed, opt.Requests, opt.Model, time.Since(d.began).Seconds())
	d.began = time.Now()
	d.requests(ctx, out)
	if err := context.Cause(ctx); err != nil {
		return errors.Join(d.verdict(), err)
	}
	err = errors.Join(d.after(ctx), d.quiet(ctx))
	d.print(out)
	return errors.Join(d.verdict(), err)
}

// engine starts a rank's engine; it is called for each rank in order.
func (d *driver) engine(_ context.Context, r *dev.Running, rank int32, dir string) error {
	if rank == 0 {
		g := &group{Running: r, boxes: map[string]*box{}, slots: d.opt.Slots, block: 16}
		tokens := d.opt.Blocks * 16
		d.groups = append(d.groups, g)
		if r.Role == discovery.Prefill {
			d.prefill = append(d.prefill, g)
		} else {
			d.decode = append(d.decode, g)
			g.block = blocks[(len(d.decode)-1)%len(blocks)]
			tokens /= 2
			g.slots = max(g.slots/2, 1)
		}
		g.blocks = tokens / g.block
	}
	return d.start(d.groups[len(d.groups)-1], rank, dir)
}

// died ends the run, unless it is being closed.
func (d *driver) died(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closing {
		d.stop(err)
	}
}

func (d *driver) close() (errs error) {
	d.mu.Lock()
	d.closing = true
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, g := range d.groups {
		wg.Go(func() { _ = g.close(ctx) })
	}
	wg.Wait()
	if d.cluster != nil {
		errs = d.cluster.Close()
	}
	return errs
}

// requests runs all of them, so many at once, with kills beside them.
func (d *driver) requests(ctx context.Context, out io.Writer) {
	shown, stop := context.WithCancel(ctx)
	defer stop()
	var side sync.WaitGroup
	defer side.Wait()
	side.Go(func() { d.progress(shown, out) })
	finished := make(chan struct{}, d.opt.Requests)
	if d.opt.KillMovers+d.opt.KillSidecars > 0 {
		side.Go(func() { d.killer(shown, finished) })
	}
	turns := make(chan struct{}, d.opt.AtOnce)
	var wg sync.WaitGroup
	for i := range d.opt.Requests {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-turns; finished <- struct{}{} }()
			d.one(ctx, i)
		})
	}
	wg.Wait()
	stop()
}

// one runs a request within its deadline.
func (d *driver) one(run context.Context, i int) {
	rnd := rand.New(rand.NewPCG(d.opt.Seed, uint64(i)))
	k := pick(rnd)
	ctx, cancel := context.WithTimeoutCause(run, d.opt.Deadline, fmt.Errorf("not done within %v", d.opt.Deadline))
	defer cancel()
	r := &request{d: d, rnd: rnd, label: fmt.Sprintf("r%d", i), kind: k.name, src: d.prefill[rnd.IntN(len(d.prefill))]}
	err := d.ready(ctx)
	if err == nil {
		err = k.run(ctx, r)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done++
	t := d.tally(k.name)
	t.requests++
	t.imports += r.imports
	t.refused += r.refused
	if err != nil && d.opt.KillSidecars > 0 && !errors.Is(err, ErrWrong) {
		d.cut++
		_ = r.say(r.src, engine.Command{Op: engine.Release, Label: r.label}) // else its lease holds it for a while
		return
	}
	if err != nil && context.Cause(run) == nil { // what it held stays held, and nothing else is worth waiting for
		d.stop(fmt.Errorf("%w: request %s (%s): %w", ErrUnexpected, r.label, k.name, err))
	}
}

func (d *driver) tally(kind string) *tally {
	t := d.counts[kind]
	if t == nil {
		t = &tally{}
		d.counts[kind] = t
	}
	return t
}

// quiet waits until nothing is held anywhere; what stays held is the error.
func (d *driver) quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.opt.Deadline, errors.New("the time for it is over"))
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for _, g := range d.groups {
		for {
			h, err := g.holding(ctx)
			if err != nil {
				return fmt.Errorf("%s: ask what is held: %w", g.Name, err)
			}
			slots := g.slots
			if d.opt.Model == "attention" {
				slots = 0
			}
			if h.FreeBlocks == g.blocks && h.FreeSlots == slots && h.Queued+h.Exports+h.Imports+h.Decodes == 0 {
				break
			}
			select {
			case <-look.C:
				continue
			case <-ctx.Done():
			}
			return fmt.Errorf("%w: %s of %d blocks and %d slots holds %+v", ErrLeaked, g.Name, g.blocks, slots, h)
		}
		if err := d.importsOver(ctx, g); err != nil {
			return err
		}
	}
	return nil
}
