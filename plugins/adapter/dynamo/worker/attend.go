package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
)

// Bounds of looks at the engine. A busy host delays an answer for a second or two; nobody
// waits half a minute for a token.
const (
	lookEvery  = time.Second
	lookWithin = 2 * time.Second
	hangsAfter = 3  // looks without an answer, in a row: no call is taken until there is one
	lostAfter  = 15 // and what runs is ended
)

// Look asks an engine how it is, nil when it serves. handoff.ErrNotReady: it does not listen;
// handoff.ErrRole: it serves the other role; handoff.ErrDraining: it takes no new request.
// context.DeadlineExceeded: there is no answer. Any other error is as nil.
type Look func(context.Context) error

// view is what looks have shown: why the engine does not serve, nil if it does, and a word for it.
type view struct {
	why  error
	word string
}

var hangs = view{fmt.Errorf("%w: the engine does not answer", handoff.ErrNotReady), "hangs"}

// Attend offers the worker while its engine serves, until ctx ends. It looks at once, then
// every second, and when the engine refuses a call because it drains.
func (w *Worker) Attend(ctx context.Context, look Look) {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	w.attend(ctx, t.C, look)
}

func (w *Worker) attend(ctx context.Context, tick <-chan time.Time, look Look) {
	now, silent := view{}, 0
	for first := true; ; first = false {
		if !first {
			select {
			case <-tick:
			case <-w.engine.refused:
			case <-ctx.Done():
				return
			}
		}
		last := now
		ask, cancel := context.WithTimeout(ctx, lookWithin)
		err := look(ask)
		cancel()
		switch silent++; {
		case ctx.Err() != nil:
			return
		case !errors.Is(err, context.DeadlineExceeded):
			silent, now = 0, seen(err)
		case first || silent >= hangsAfter:
			now = hangs
		}
		if silent == lostAfter {
			w.engine.lose()
		}
		if now.word != last.word {
			w.turn(now, first)
		}
	}
}

func seen(err error) view {
	switch {
	case errors.Is(err, handoff.ErrRole):
		return view{err, "has the other role"}
	case errors.Is(err, handoff.ErrDraining):
		return view{err, "drains"}
	case errors.Is(err, handoff.ErrNotReady):
		return view{err, "is away"}
	}
	return view{nil, "is there"}
}

// turn has clients find the worker, or not, and says so.
func (w *Worker) turn(v view, first bool) {
	log, text := w.cfg.Log, "the engine "+v.word
	switch {
	case v.why == nil && !first:
		log.Info(text + ": the worker is offered")
	case v.word == "drains":
		log.Info(text + ": the worker is offered to nobody until it takes requests again")
	case v.word == "is away":
		log.Warn(text+": the worker is offered to nobody until it is there", "err", v.why)
	case v.why != nil:
		log.Error(text+": the worker is offered to nobody until that has changed", "err", v.why)
	}
	if v.word == hangs.word {
		w.engine.hang()
	} else {
		w.engine.answers()
	}
	w.Offer(v.why == nil)
}
