package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// order is a request that the router is to place: what a client sent to a front end.
type order struct {
	Label    string        `json:"label"`
	Tokens   []int32       `json:"tokens"`
	Deadline time.Duration `json:"deadline_ns"`
	Abort    bool          `json:"abort"` // ask for its end as soon as it is under way
}

// Steps of a report. The last three end an order.
const (
	stepChosen   = "chosen"   // Group will import it
	stepImported = "imported" // Imported is set
	stepAborted  = "aborted"  // Held says whether its source still had it then; it was released
	stepFailed   = "failed"   // Why
)

// report is what became of an order.
type report struct {
	Label    string            `json:"label"`
	Step     string            `json:"step"`
	Group    string            `json:"group,omitempty"`
	Imported *handoff.Imported `json:"imported,omitempty"`
	Held     bool              `json:"held,omitempty"`
	Why      string            `json:"why,omitempty"`
}

// router is a control plane. It sees the cluster, and asks for everything, by the
// interfaces alone.
type router struct {
	c plugins.Cluster
	h plugins.Handoff

	mu      sync.Mutex // guards:
	out     *json.Encoder
	view    []plugins.Group
	changed chan struct{}              // closed at the next view
	watched map[string]bool            // groups whose notices are heard
	shown   map[string]chan exportedBy // by label
	placed  map[string]int             // imports that a group was given
}

type exportedBy struct {
	group    string
	manifest handoff.Manifest
}

// Route places the orders that come as JSON lines on in, until that ends, and reports on
// out. It knows of the cluster what c and h tell.
func Route(ctx context.Context, c plugins.Cluster, h plugins.Handoff, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	r := &router{c: c, h: h, out: json.NewEncoder(out), changed: make(chan struct{}), watched: map[string]bool{},
		shown: map[string]chan exportedBy{}, placed: map[string]int{}}
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() { r.see(ctx, &all) })
	for dec := json.NewDecoder(in); ; {
		var o order
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("orders: %w", err)
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, o.Deadline)
			defer cancel()
			rep, err := r.place(ctx, o)
			if err != nil {
				rep = report{Step: stepFailed, Why: err.Error()}
			}
			rep.Label = o.Label
			r.report(rep)
		})
	}
}

// report writes one line. An error is the end of who reads, and so of the orders.
func (r *router) report(rep report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.out.Encode(rep)
}

// see keeps the newest view, and hears the notices of each group that exports.
func (r *router) see(ctx context.Context, all *sync.WaitGroup) {
	for view, err := range r.c.Watch(ctx) {
		if err != nil {
			return // ctx's: a host's watch goes on over all else
		}
		r.mu.Lock()
		r.view = view
		close(r.changed)
		r.changed = make(chan struct{})
		for _, g := range view {
			if g.Role != discovery.Decode && !r.watched[g.Name] {
				r.watched[g.Name] = true
				all.Go(func() { r.hear(ctx, g.Name) })
			}
		}
		r.mu.Unlock()
	}
}

// hear passes on the manifests that a group shows, from the oldest that its leader keeps.
func (r *router) hear(ctx context.Context, group string) {
	var from control.Cursor
	for ctx.Err() == nil {
		for n, err := range r.h.Watch(ctx, group, from) {
			if err != nil {
				break
			}
			from = n.After()
			if n.Kind != control.Exported || n.Manifest == nil {
				continue
			}
			select {
			case r.manifest(n.Label) <- exportedBy{group, *n.Manifest}:
			default: // shown again
			}
		}
		pause.For(ctx, 100*time.Millisecond)
	}
}

func (r *router) manifest(label string) chan exportedBy {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shown[label] == nil {
		r.shown[label] = make(chan exportedBy, 1)
	}
	return r.shown[label]
}

// place sees an order to its end.
func (r *router) place(ctx context.Context, o order) (report, error) {
	var x exportedBy
	select {
	case x = <-r.manifest(o.Label):
	case <-ctx.Done():
		return report{}, fmt.Errorf("no manifest of %s was shown: %w", o.Label, ctx.Err())
	}
	group, err := r.choose(ctx)
	if err != nil {
		return report{}, err
	}
	r.report(report{Label: o.Label, Step: stepChosen, Group: group})
	m := handoff.Import{Label: o.Label, Manifest: x.manifest, Tokens: o.Tokens, Deadline: o.Deadline}
	if o.Abort {
		return r.abort(ctx, group, x, m)
	}
	got, err := r.h.Import(ctx, group, m)
	return report{Step: stepImported, Group: group, Imported: &got}, err
}

// choose takes the decode group that was given the fewest imports; of equals the one with
// more blocks, then the first by name. It waits for one that takes work.
func (r *router) choose(ctx context.Context) (string, error) {
	for {
		r.mu.Lock()
		able := slices.DeleteFunc(slices.Clone(r.view), func(g plugins.Group) bool {
			return g.Role == discovery.Prefill || !g.Complete || g.Draining
		})
		if len(able) > 0 {
			best := slices.MinFunc(able, func(a, b plugins.Group) int {
				if n := r.placed[a.Name] - r.placed[b.Name]; n != 0 {
					return n
				}
				return int(b.CapacityBlocks - a.CapacityBlocks)
			})
			r.placed[best.Name]++
			r.mu.Unlock()
			return best.Name, nil
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return "", fmt.Errorf("no decode group takes work: %w", ctx.Err())
		}
	}
}

// abort begins an import and asks for its end until it has one. What was not imported is
// still the source's, which is then told to give it back.
func (r *router) abort(ctx context.Context, group string, x exportedBy, m handoff.Import) (report, error) {
	ended := make(chan error, 1)
	var got handoff.Imported
	go func() { // ends with ctx, which the order bounds
		var err error
		got, err = r.h.Import(ctx, group, m)
		ended <- err
	}()
	err, over := error(nil), false
	for !over {
		aborted := r.h.Abort(ctx, group, m.Manifest.ID)
		select {
		case err = <-ended:
			over = true
		default:
			if errors.Is(aborted, handoff.ErrUnknown) { // its import is not there yet
				continue
			}
			err, over = <-ended, true
		}
	}
	if err == nil { // it was too far
		return report{Step: stepImported, Group: group, Imported: &got}, nil
	}
	if !errors.Is(err, handoff.ErrAborted) {
		return report{}, err
	}
	info, err := r.h.Get(ctx, x.group, m.Manifest.ID)
	if err != nil {
		return report{}, fmt.Errorf("ask the source of what was aborted: %w", err)
	}
	held := info.Phase == control.Held && info.Copies > 0
	if err := r.h.Release(ctx, m.Manifest.ID, m.Manifest.Key); err != nil {
		return report{}, fmt.Errorf("release what was aborted: %w", err)
	}
	return report{Step: stepAborted, Group: group, Held: held}, nil
}
