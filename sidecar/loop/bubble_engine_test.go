package loop

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

// copier is a backend whose copies take a second.
type copier struct{ n *inside }

func (copier) Name() string                                                 { return "shm" }
func (copier) Close(context.Context) error                                  { return nil }
func (c copier) Open(context.Context, transfer.Peer) (transfer.Link, error) { return link{c.n}, nil }

func (c copier) Register(_ context.Context, id transfer.RegionID, m transfer.Memory) (transfer.Region, error) {
	c.n.b.note(c.n.name, "maps")
	return region{c.n, id}, unix.Close(m.FD)
}

type region struct {
	n  *inside
	id transfer.RegionID
}

func (r region) ID() transfer.RegionID { return r.id }
func (r region) Close() error {
	if r.n.unmaps != nil {
		<-r.n.unmaps
	}
	r.n.b.note(r.n.name, "unmaps")
	return nil
}

type link struct{ n *inside }

func (l link) Close() error { l.n.b.note(l.n.name, "closes a link"); return nil }

func (l link) Pull(context.Context, *lower.Template, lower.Job) (transfer.Ticket, error) {
	c := &copied{n: l.n, done: make(chan struct{})}
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	l.n.copies = append(l.n.copies, c)
	if !l.n.stay {
		time.AfterFunc(time.Second, func() { c.end(nil) })
	}
	return c, nil
}

// copied is a ticket.
type copied struct {
	n    *inside
	done chan struct{}
	once sync.Once
	err  error
}

func (c *copied) Done() <-chan struct{} { return c.done }
func (c *copied) Err() error            { return c.err }
func (c *copied) Bytes() int64          { return 1 }
func (c *copied) Cancel()               { c.n.b.note(c.n.name, "asks a copy to stop") }
func (c *copied) end(err error)         { c.once.Do(func() { c.err = err; close(c.done) }) }

// settle ends every copy.
func (n *inside) settle(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.copies {
		c.end(err)
	}
}

// engineEnd is an engine's end of a session: a group of one, which applies decisions when
// it hears that it may.
type engineEnd struct {
	n     *inside
	words chan handoff.ToEngine
	gone  chan struct{} // closed when the sidecar knows of the end

	mu   sync.Mutex // guards:
	over bool
	why  error
	deaf bool // takes no more messages

	held []handoff.Decision
}

// engine attaches a new engine.
func (n *inside) engine() *engineEnd {
	return n.engineOf(attachOf(n.cfg.Machine.Self.Group, handoff.Instance(Random()), 0, 1))
}

// engineOf attaches one that states a.
func (n *inside) engineOf(a handoff.Attach) *engineEnd {
	e := &engineEnd{n: n, words: make(chan handoff.ToEngine, 1024), gone: make(chan struct{})}
	n.last = e
	go func() {
		defer close(e.gone)
		if n.attach(e, a) != nil {
			return
		}
		for m := range e.words {
			e.hear(m)
		}
		n.engineClosed(e, e.why)
	}()
	return e
}

func (e *engineEnd) Send(m handoff.ToEngine) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over || e.deaf {
		return fmt.Errorf("%w: it does not listen", handoff.ErrEngine)
	}
	e.words <- m // has room
	return nil
}

func (e *engineEnd) Close(err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.over {
		e.over, e.why = true, err
		close(e.words)
		e.n.b.note(e.n.name, "loses its engine")
	}
	return nil
}

func (e *engineEnd) say(ms ...handoff.FromEngine) {
	for _, m := range ms {
		e.n.fromEngine(e, m)
	}
}

func (e *engineEnd) hear(m handoff.ToEngine) {
	note := func(format string, args ...any) { e.n.b.note(e.n.name, "tells its engine: "+format, args...) }
	switch m := m.(type) {
	case handoff.Attached:
		e.say(handoff.BuffersReady{})
	case handoff.Exported:
		note("exported %s", m.Label)
	case handoff.Imported:
		note("imported %s", m.Label)
	case handoff.Failed:
		note("failed %s", m.Label)
	case handoff.TellBlocks:
		note("tell blocks %v", m.On)
	case handoff.Decision:
		note("%v", m.Kind)
		e.held = append(e.held, m)
		e.say(handoff.Held{N: m.N})
	case handoff.Through:
		for len(e.held) > 0 && e.held[0].N <= m.N {
			if d := e.held[0]; d.Kind == handoff.Reserve {
				r := handoff.Reserved{N: d.N, Slot: -1}
				for k := range (d.Tokens + rows - 1) / rows {
					r.Blocks = append(r.Blocks, k)
				}
				e.say(r)
			}
			e.held = e.held[1:]
		}
		e.say(handoff.Applied{N: m.N})
	}
}

// export exports a block.
func (e *engineEnd) export(label string, hold time.Duration) {
	e.say(handoff.Export{Label: label, Blocks: []int32{0}, Tokens: rows, Position: rows, Slot: -1, MaxHold: hold, Resume: handoff.Resume{Tokens: []int32{7}}})
}
