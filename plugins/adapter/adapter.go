// Package adapter is the seam between one group and one control plane. An adapter runs
// beside the group's rank 0, in its sidecar or as a child of it, and says what happens in
// the words of its control plane.
//
// A life of an adapter has one order: Register, Configure, Sync with the whole state, Notify
// with what changed, Drain. Calls come one at a time. A call that fails, outlasts its time,
// or whose process dies ends the life; after a pause the next life begins at Register.
// Transfers go on meanwhile: an adapter is told and may ask, it decides nothing.
package adapter

import (
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Adapter speaks for one group to one control plane. ctx ends when the answer is not waited
// for any more: the call took too long or the sidecar lets go.
type Adapter interface {
	// Register says who the adapter is. It reaches nothing outside.
	Register(ctx context.Context) (Info, error)
	// Configure hands over the adapter's own part of the configuration, in YAML, which is
	// empty when it has none. handoff.ErrSection refuses it for good: the text says which field
	// and why, and nothing is tried again. Any other error is tried again. One that is built
	// into baton reaches nothing outside: a sidecar asks it before it starts, too.
	Configure(ctx context.Context, section []byte) error
	// Sync tells the whole state. What the control plane knew of the group before is void.
	Sync(ctx context.Context, s State) error
	// Notify tells what changed since the last call. An empty update says that nothing did.
	Notify(ctx context.Context, u Update) error
	// Drain ends the life in order: the sidecar stops. No call follows.
	Drain(ctx context.Context) error
}

// Asker is an ability of adapters that pass on what their control plane asks.
type Asker interface {
	// Ask gives the calls that may be made. It is called once, after Configure and before
	// Sync, and returns at once. After Drain, or when the life ended, every call fails.
	Ask(calls Calls)
}

// Calls is what an adapter may ask of its group. A sidecar takes at most MaxAsks at once,
// more fail with handoff.ErrCapacity. Safe for concurrent use.
type Calls interface {
	// Import returns when the hand-off was admitted, or with the reason why not. It goes on
	// when ctx or the life ends first; then it, Abort and Release fail with
	// handoff.ErrInDoubt, and Get tells.
	Import(ctx context.Context, m handoff.Import) (handoff.Imported, error)
	Get(ctx context.Context, id handoff.ID) (control.Info, error)
	List(ctx context.Context, q control.Query) (control.Page, error)
	// Abort asks to end the import of id under key; one under another key goes on.
	Abort(ctx context.Context, id handoff.ID, key handoff.Key) error
	Release(ctx context.Context, id handoff.ID, key handoff.Key) error
}

// Bounds of what crosses the seam.
const (
	MaxName     = 63      // bytes of Info.Name and Info.Version
	MaxSection  = 1 << 20 // bytes of a configuration section
	MaxHandoffs = 8 * control.MaxPage
	MaxNotices  = 256     // of one Update
	MaxBytes    = 8 << 20 // of its notices, as Weight counts
	MaxAsks     = 1024
)

// Info is what an adapter says of itself.
type Info struct {
	Name, Version string
	// Wants are the kinds of notices that it is told. State comes without asking.
	Wants []control.Kind
}

// Check says what is wrong, as handoff.ErrBound.
func (i Info) Check() error {
	for _, f := range []struct{ field, value string }{{"name", i.Name}, {"version", i.Version}} {
		if f.value == "" || len(f.value) > MaxName || !utf8.ValidString(f.value) {
			return fmt.Errorf("%w: adapter %s %.*q: want 1 to %d bytes of UTF-8", handoff.ErrBound, f.field, MaxName, f.value, MaxName)
		}
	}
	for n, k := range i.Wants {
		if k <= control.Gap || k > control.Linked || slices.Contains(i.Wants[:n], k) {
			return fmt.Errorf("%w: adapter wants notices of %v: want each kind once, gaps are told unasked", handoff.ErrBound, k)
		}
	}
	return nil
}

// Weight bounds from above what a notice takes on the wire, in bytes.
func Weight(n control.Notice) int {
	w := 8 << 10
	if n.Manifest != nil {
		r := n.Manifest.Resume
		w += len(r.Sampler) + 10*len(r.Tokens) + 4*len(r.Logprobs)
	}
	return w
}
