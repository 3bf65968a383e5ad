// Package demo runs real prompts through a prefill group and a decode group that
// cmd/dev brought up, is itself the control plane between them, and compares every
// token with one engine that does both.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// ErrNotEqual says that tokens after a hand-off differ from those of one engine.
var ErrNotEqual = errors.New("tokens after the hand-off are NOT EQUAL to those of one engine doing both")

// ErrBytes says that the copies moved another number of bytes than the shapes say.
var ErrBytes = errors.New("bytes moved differ from the closed form")

// Options is one run.
type Options struct {
	Dev      dev.Options
	MaxNew   int32         // tokens of each answer
	Sample   bool          // draw tokens by a seed, and compare their logprobs too; else greedily
	Answers  int32         // of each prompt, all from one export
	Deadline time.Duration // of one request
	Kill     string        // GROUP/RANK whose sidecar is killed in the middle of a hand-off; "": none
	Parts    bool          // import prompts while they are computed, in parts
	Via      string        // who places requests: "" the demo itself, or ViaPlugin
}

// Bounds of Options, beside front.MaxNew.
const (
	minDeadline = 100 * time.Millisecond
	maxDeadline = 10 * time.Minute
)

// quiet is how long a step may take before it is said to be under way.
const quiet = time.Second

// ErrOptions is a fault of Options; its text names the flag.
var ErrOptions = errors.New("demo")

// Check refuses what the demo cannot run with, before anything is started.
func (o Options) Check() error {
	has := func(role discovery.Role) bool {
		return slices.ContainsFunc(o.Dev.Groups, func(g dev.Group) bool { return g.Role == role })
	}
	switch {
	case !has(discovery.Prefill) || !has(discovery.Decode):
		return fmt.Errorf("%w: --inference-shards: the demo needs a prefill and a decode group, such as tp=2,role=prefill+tp=1,role=decode", ErrOptions)
	case o.MaxNew < 1 || o.MaxNew > front.MaxNew:
		return fmt.Errorf("%w: --new %d: want 1 to %d", ErrOptions, o.MaxNew, front.MaxNew)
	case o.Answers < 1 || o.Answers > sample.MaxAnswers:
		return fmt.Errorf("%w: --answers %d: want 1 to %d", ErrOptions, o.Answers, sample.MaxAnswers)
	case o.Answers > 1 && o.Via != "":
		return fmt.Errorf("%w: --answers %d: the process of --via %s imports each prompt once", ErrOptions, o.Answers, o.Via)
	case o.Deadline < minDeadline || o.Deadline > maxDeadline:
		return fmt.Errorf("%w: --deadline %v: want %v to %v", ErrOptions, o.Deadline, minDeadline, maxDeadline)
	}
	var first *dev.Group
	for i, g := range o.Dev.Groups {
		switch {
		case g.Role != discovery.Prefill:
		case first == nil:
			first = &o.Dev.Groups[i]
		case types(g) != types(*first):
			// What decode has cached of a shared prefix would be of either's types.
			return fmt.Errorf("%w: --inference-shards: groups %s and %s keep state in different types: give prefill groups the same", ErrOptions, first.Name, g.Name)
		}
	}
	if o.Via != "" && o.Via != ViaPlugin {
		return fmt.Errorf("%w: --via %q: want %s", ErrOptions, o.Via, ViaPlugin)
	}
	if o.Parts && o.Via != "" {
		return fmt.Errorf("%w: --export-parts: the process of --via %s imports what is exported whole", ErrOptions, o.Via)
	}
	if o.Parts && o.Kill != "" {
		return fmt.Errorf("%w: --export-parts: a prompt is imported before --kill would strike", ErrOptions)
	}
	_, _, err := o.victim()
	return err
}

// row is what became of one request.
type row struct {
	src, dst    *dev.Running
	prompt      prompt
	label       string
	answers     []answer
	blockTokens int32
	backend     string // what moved it
}

// demo is one run's state.
type demo struct {
	opt     Options
	cluster *dev.Cluster
	out     io.Writer
	struck  bool // a sidecar was killed: a request that fails is tried again
	model   model.Config
	prefill []*dev.Running
	decode  []*dev.Running
	// who places the requests: the demo itself, from the manifests that Watch brings, by
	// label; or an external control plane. begun are those of announced labels.
	shown    map[string]chan handoff.Manifest
	begun    map[string]chan handoff.Manifest
	external *external
}

// Run brings the groups up, moves every prompt, prints the table and the verdict.
// The error is ErrNotEqual when a token differs.
func Run(ctx context.Context, opt Options, out io.Writer) (err error) {
	if opt.Dev, err = opt.Dev.Defaults(ctx); err != nil {
		return err
	}
	if err := opt.Check(); err != nil {
		return err
	}
	opt.Dev.Parts = opt.Parts
	opt.Dev.Blocks = max(opt.Dev.Blocks, blocks(opt.Dev.BlockTokens, opt.MaxNew))
	m, err := model.Open(opt.Dev.ModelDir, opt.Dev.Model, opt.Dev.Seed)
	if err != nil {
		return err
	}
	began := time.Now()
	c, err := dev.Up(ctx, opt.Dev)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { // ends with ctx
		select {
		case err := <-c.Died():
			stop(err)
		case <-ctx.Done():
		}
	}()
	d := &demo{opt: opt, cluster: c, out: out, model: m, shown: map[string]chan handoff.Manifest{}, begun: map[string]chan handoff.Manifest{}}
	for _, g := range c.Groups {
		if g.Role == discovery.Prefill {
			d.prefill = append(d.prefill, g)
		} else {
			d.decode = append(d.decode, g)
		}
	}
	c.Print(out)
	fmt.Fprintf(out, "\nup in %.1f s\n\n", time.Since(began).Seconds())
	rows, err := d.requests(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return err
	}
	if err := d.printPicture(out, rows[len(rows)-1]); err != nil {
		return err
	}
	if opt.Parts {
		n, err := d.parts(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%d parts of prompts were told while the rest was computed\n", n)
	}
	return d.verdict(out, rows)
}

// requests moves the prompts one by one, each between the next pair of groups.
func (d *demo) requests(ctx context.Context) (rows []row, err error) {
	ps := prompts(d.opt.Dev.BlockTokens)
	for i := range ps {
		d.shown[label(i)], d.begun[label(i)] = make(chan handoff.Manifest, 1), make(chan handoff.Manifest, 1)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, len(d.prefill))
	if d.opt.Via == ViaPlugin {
		if d.external, err = d.launch(); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, d.external.close()) }()
	} else {
		for _, g := range d.prefill {
			go func() { failed <- d.watch(watching, g) }()
		}
	}
	d.printHeader()
	for i, p := range ps {
		r, err := d.request(ctx, i, p, failed)
		if err != nil {
			return rows, fmt.Errorf("request %s (%s): %w", label(i), p.name, err)
		}
		rows = append(rows, r)
		d.printRow(r)
	}
	if d.external == nil {
		return rows, nil
	}
	r, err := d.abort(ctx, ps[len(ps)-2])
	if err != nil {
		return rows, fmt.Errorf("request %s, to be aborted: %w", r.label, err)
	}
	d.printAborted(r)
	return rows, nil
}

func label(i int) string { return fmt.Sprintf("r%d", i+1) }

// watch passes on the manifests that a prefill leader shows.
func (d *demo) watch(ctx context.Context, g *dev.Running) error {
	for n, err := range g.Leader.Watch(ctx, control.Cursor{}) {
		if err != nil && d.opt.Kill != "" && ctx.Err() == nil {
			return d.watchAgain(ctx, g)
		}
		if err != nil {
			return fmt.Errorf("watch of %s: %w", g.Name, err)
		}
		ch := d.shown[n.Label]
		if n.Kind == control.Announced {
			ch = d.begun[n.Label]
		}
		if (n.Kind == control.Exported || n.Kind == control.Announced) && ch != nil && n.Manifest != nil {
			select {
			case ch <- *n.Manifest:
			default: // shown again
			}
		}
	}
	return nil
}

// request takes one prompt through prefill, hand-off and decode, and computes what
// one engine says.
func (d *demo) request(ctx context.Context, i int, p prompt, watchFailed <-chan error) (row, error) {
	r, err := d.handOver(ctx, i, label(i), p, watchFailed)
	for began, n := time.Now(), 2; err != nil && d.struck && ctx.Err() == nil && time.Since(began) < d.opt.Deadline; n++ {
		pause.For(ctx, 50*time.Millisecond)
		r, err = d.handOver(ctx, i, fmt.Sprintf("%s.%d", label(i), n), p, watchFailed)
	}
	if err != nil {
		return r, err
	}
	r.backend = backend(ctx, r)
	defer d.slow("%s: one engine answers its %d tokens too, to compare", r.label, len(p.tokens))()
	return r, d.compute(ctx, i, r)
}

// slow has what takes longer than most said, unless the returned function is called before.
func (d *demo) slow(format string, args ...any) func() bool {
	return time.AfterFunc(quiet, func() { d.opt.Dev.Progress(fmt.Sprintf(format, args...)) }).Stop
}

// handOver takes one prompt through prefill, hand-off and decode within the deadline.
func (d *demo) handOver(ctx context.Context, i int, name string, p prompt, watchFailed <-chan error) (r row, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.opt.Deadline, fmt.Errorf("not done within --deadline %v", d.opt.Deadline))
	defer cancel()
	defer func() {
		if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}()
	src, dst := d.prefill[i%len(d.prefill)], d.decode[i%len(d.decode)]
	r = row{prompt: p, src: src, dst: dst, label: name, blockTokens: d.opt.Dev.BlockTokens}
	defer d.slow("%s: %s computes its prompt of %d tokens", name, src.Name, len(p.tokens))()
	if d.opt.Parts {
		return d.inParts(ctx, i, r, watchFailed)
	}
	res, err := generate(ctx, src, front.Request{Tokens: p.tokens, MaxNew: d.opt.MaxNew, Label: r.label, Mode: front.Export, Sample: d.sampling(i)}, nil)
	if err != nil {
		return r, fmt.Errorf("prefill on %s: %w", src.Name, err)
	}
	man := *res.Manifest
	if !d.struck && d.external == nil { // a control plane learns of it by its watch
		select {
		case man = <-d.shown[r.label]:
		case err := <-watchFailed:
			return r, err
		case <-ctx.Done():
			return r, context.Cause(ctx)
		}
	}
	if err := d.strike(ctx, i); err != nil {
		return r, err
	}
	if d.external != nil {
		if dst, err = d.place(ctx, order{Label: r.label, Tokens: p.tokens}); err != nil {
			return r, err
		}
		r.dst = dst
	}
	for n := range d.opt.Answers {
		a, err := d.decodeAnswer(ctx, r, man, n)
		if err != nil {
			return r, err
		}
		r.answers = append(r.answers, a)
	}
	return r, nil
}

// bring imports, or waits until the external control plane has.
func (d *demo) bring(ctx context.Context, dst *dev.Running, m handoff.Import) (handoff.Imported, error) {
	if d.external == nil {
		return dst.Leader.Import(ctx, m)
	}
	rep, err := d.external.next(ctx, m.Label)
	if err != nil {
		return handoff.Imported{}, err
	}
	return *rep.Imported, nil
}

func generate(ctx context.Context, g *dev.Running, req front.Request, each func(front.Event)) (front.Result, error) {
	c, err := front.Dial(ctx, g.Front())
	if err != nil {
		return front.Result{}, err
	}
	if each == nil {
		each = func(front.Event) {}
	}
	return c.Stream(ctx, req, each)
}

// types are those of a group's state.
func types(g dev.Group) model.Types {
	return model.Types{KV: g.KV, Conv: g.Conv, SSM: g.SSM}.WithDefaults()
}

// split is how a group's ranks divide the model.
func split(g dev.Group) model.Split {
	return model.Split{TP: int(g.TP), PP: int(g.PP), EP: int(g.EP), ExptTP: int(g.ExptTP), Layers: g.Layers}
}

// closedForm is what must move into dst for tokens of a prompt that are not in its cache:
// their K and V or latents, and the whole per-request state, as dst stores them. The
// prefill layout does not appear in it. Of the decode layout only that a latent is whole
// on every rank of its stage, a KV head or a group on several when there are more ranks,
// and all of it on each rank that holds other experts.
func closedForm(m model.Config, dst dev.Group, tokens int) int64 {
	t, tp := types(dst), int(dst.TP)
	kv := m.AttentionLayers() * 2 * max(m.KVHeads, tp) * m.HeadDim
	latent := m.LatentLayers() * tp * (m.LatentDim + m.RotaryDim)
	channels := m.SSMHeads*m.SSMHeadDim + 2*max(m.Groups, tp)*m.StateDim
	conv := m.SSMLayers() * channels * m.Window
	ssm := m.SSMLayers() * m.SSMHeads * m.SSMHeadDim * m.StateDim
	copies := int64(max(dst.EP, 1) * max(dst.ExptTP, 1))
	return copies * (int64(tokens*(kv+latent))*t.KV.Size() + int64(conv)*t.Conv.Size() + int64(ssm)*t.SSM.Size())
}
