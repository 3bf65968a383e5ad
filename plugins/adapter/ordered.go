package adapter

import (
	"context"
	"fmt"
	"sync"

	"github.com/batonkv/baton/sidecar/handoff"
)

// Verb is a call of Adapter. They are in the order of a life.
type Verb uint8

const (
	Register Verb = iota + 1
	Configure
	Sync
	Notify
	Drain
)

var verbNames = [...]string{Register: "register", Configure: "configure", Sync: "sync", Notify: "notify", Drain: "drain"}

func (v Verb) String() string {
	if int(v) < len(verbNames) && v > 0 {
		return verbNames[v]
	}
	return "verb(?)"
}

// Ordered is a that is held to the order of one life: a call out of it, beside another, or
// after one that failed, fails with handoff.ErrOrder and does not reach a. It has a's
// abilities.
func Ordered(a Adapter) Adapter {
	o := &ordered{a: a}
	asker, asks := a.(Asker)
	reader, reads := a.(BlockReader)
	switch {
	case asks && reads:
		return &orderedBoth{o, asker, reader}
	case asks:
		return &orderedAsker{o, asker}
	case reads:
		return &orderedReader{o, reader}
	}
	return o
}

type ordered struct {
	a Adapter

	mu   sync.Mutex // guards:
	last Verb       // that succeeded; 0: none
	busy bool
	over bool
}

type orderedAsker struct {
	*ordered
	Asker
}

type orderedReader struct {
	*ordered
	BlockReader
}

type orderedBoth struct {
	*ordered
	Asker
	BlockReader
}

// follows says whether v may come after last.
func follows(last, v Verb) bool {
	if last == Sync || last == Notify {
		return v == Notify || v == Drain
	}
	return v == last+1
}

// in runs f in its place of the order.
func (o *ordered) in(v Verb, f func() error) error {
	o.mu.Lock()
	var err error
	switch {
	case o.busy:
		err = fmt.Errorf("%w: %v while another call runs", handoff.ErrOrder, v)
	case o.over:
		err = fmt.Errorf("%w: %v after this life ended: begin another one at register", handoff.ErrOrder, v)
	case !follows(o.last, v):
		err = fmt.Errorf("%w: %v after %v: want register, configure, sync, notify…, drain", handoff.ErrOrder, v, o.last)
	}
	if o.busy = o.busy || err == nil; err != nil {
		o.mu.Unlock()
		return err
	}
	o.mu.Unlock()
	err = f()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy, o.last = false, v
	o.over = err != nil || v == Drain
	return err
}

func (o *ordered) Register(ctx context.Context) (i Info, err error) {
	err = o.in(Register, func() error {
		if i, err = o.a.Register(ctx); err != nil {
			return err
		}
		return i.Check()
	})
	return i, err
}

func (o *ordered) Configure(ctx context.Context, section []byte) error {
	return o.in(Configure, func() error { return o.a.Configure(ctx, section) })
}

func (o *ordered) Sync(ctx context.Context, s State) error {
	return o.in(Sync, func() error { return o.a.Sync(ctx, s) })
}

func (o *ordered) Notify(ctx context.Context, u Update) error {
	return o.in(Notify, func() error { return o.a.Notify(ctx, u) })
}

func (o *ordered) Drain(ctx context.Context) error {
	return o.in(Drain, func() error { return o.a.Drain(ctx) })
}
