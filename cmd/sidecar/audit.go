package sidecar

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// auditQueue is how many calls may wait for the log.
const auditQueue = 1024

// audit says in the log and by an event who asked what. No call waits for the log: what finds
// it that far behind is counted, and the count is logged.
type audit struct {
	to     func(events.Event) // publishes; never blocks
	log    *slog.Logger
	queue  chan control.Audited
	lost   atomic.Uint64
	cancel context.CancelFunc
	done   chan struct{}
}

// startAudit starts the one goroutine that logs, until close.
func startAudit(log *slog.Logger, to func(events.Event)) *audit {
	ctx, cancel := context.WithCancel(context.Background())
	a := &audit{to: to, log: log, queue: make(chan control.Audited, auditQueue), cancel: cancel, done: make(chan struct{})}
	go a.run(ctx)
	return a
}

// close logs what waits. Nobody hears afterwards.
func (a *audit) close() error {
	a.cancel()
	<-a.done
	return nil
}

// notable reports whether a call is told beyond the debug log: it was to change something, it
// began to watch, or its caller was refused. What is asked over and over would crowd out the rest.
func notable(c control.Audited) bool {
	return !c.ReadOnly() || c.Call == "Watch" || errors.Is(c.Err, handoff.ErrDenied) || errors.Is(c.Err, handoff.ErrVersion)
}

// hear is the func of control.WithAudit.
func (a *audit) hear(c control.Audited) {
	select {
	case a.queue <- c:
	default:
		a.lost.Add(1)
	}
	if !notable(c) {
		return
	}
	e := events.Event{Time: time.Now(), Kind: events.Control, By: c.By, Call: c.Call, Asked: c.Asked, Label: c.Label, Elapsed: c.Elapsed}
	if c.ID != (handoff.ID{}) {
		e.Handoff = c.ID.String()
	}
	if c.Err != nil {
		e.Cause = c.Err.Error()
	}
	a.to(e)
}

func (a *audit) run(ctx context.Context) {
	defer close(a.done)
	for {
		select {
		case c := <-a.queue:
			a.write(c)
		case <-ctx.Done():
			for len(a.queue) > 0 {
				a.write(<-a.queue)
			}
			return
		}
	}
}

// write is one line; an attribute that has nothing to say is left out.
func (a *audit) write(c control.Audited) {
	level, attrs := slog.LevelDebug, []slog.Attr{slog.String("by", c.By), slog.String("call", c.Call)}
	if notable(c) {
		level = slog.LevelInfo
	}
	for _, t := range []struct{ key, text string }{{"asked", c.Asked}, {"label", c.Label}} {
		if t.text != "" {
			attrs = append(attrs, slog.String(t.key, t.text))
		}
	}
	if c.ID != (handoff.ID{}) {
		attrs = append(attrs, slog.String("handoff", c.ID.String()))
	}
	attrs = append(attrs, slog.Duration("elapsed", c.Elapsed))
	if c.Err != nil {
		attrs = append(attrs, slog.Any("err", c.Err))
	}
	a.log.LogAttrs(context.Background(), level, "control", attrs...)
	if n := a.lost.Swap(0); n > 0 {
		a.log.Warn("control: calls came faster than the log takes them, and are not in it", "calls", n)
	}
}
