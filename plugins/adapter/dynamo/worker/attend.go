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
	passedBy   = 3  // looks in a row: what they show of an engine does not pass at once
	lostAfter  = 15 // looks in a row without an answer: what runs is ended
	joinedBy   = 12 // looks in a row at an engine that serves: its group should have joined, too
)

// Look asks an engine how it is: nil when it serves, and how many tokens of prompt and answer
// it can hold, 0 when it does not tell. handoff.ErrNotReady: it does not listen;
// handoff.ErrRole: it serves the other role; handoff.ErrDraining: it takes no new request;
// handoff.ErrPeer: it has no sidecar; context.DeadlineExceeded: there is no answer. Any other
// error is as nil.
type Look func(context.Context) (room int32, err error)

// view is what a look shows: why the engine does not serve, nil if it does, and a word for it.
type view struct {
	why    error
	word   string
	passes bool // perhaps at once: it counts when looks in a row have shown it
}

var hangs = view{fmt.Errorf("%w: the engine does not answer", handoff.ErrNotReady), "hangs", true}

// Attend offers the worker while its engine serves, until ctx ends. It looks at once, then
// every second, and when the engine refuses a call because it drains.
func (w *Worker) Attend(ctx context.Context, look Look) {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	w.attend(ctx, t.C, look)
}

func (w *Worker) attend(ctx context.Context, tick <-chan time.Time, look Look) {
	var now, last view
	row := 0 // looks in a row that showed last; those between two ticks are one
	for first := true; ; first = false {
		ticks := 1
		if !first {
			select {
			case <-tick:
			case <-w.engine.refused:
				ticks = 0 // callers are not patient
			case <-ctx.Done():
				return
			}
		}
		ask, cancel := context.WithTimeout(ctx, lookWithin)
		room, err := look(ask)
		cancel()
		if ctx.Err() != nil {
			return
		}
		v := seen(err)
		if row += ticks; v.word != last.word {
			row = 1
		}
		switch last = v; {
		case ticks == 0:
		case v.word == hangs.word && row == lostAfter:
			w.engine.lose()
		case v.why == nil && row == joinedBy:
			w.tasks.Go(w.missGroup)
		}
		if v.passes && !first && row < passedBy {
			continue
		}
		if news := err == nil && w.fit(room); news || v.word != now.word {
			w.turn(v, first || v.word == now.word)
		}
		now = v
	}
}

func seen(err error) view {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return hangs
	case errors.Is(err, handoff.ErrRole):
		return view{err, "has the other role", false}
	case errors.Is(err, handoff.ErrDraining):
		return view{err, "drains", false}
	case errors.Is(err, handoff.ErrNotReady):
		return view{err, "is away", false}
	case errors.Is(err, handoff.ErrPeer):
		return view{err, "has no sidecar", true} // one that ends is started again
	}
	return view{nil, "is there", false}
}

// fit takes how many tokens the engine can hold, and reports whether that is news.
func (w *Worker) fit(room int32) bool {
	if room == 0 || w.room.Swap(room) == room {
		return false
	}
	if err := w.describe(); err != nil {
		w.cfg.Log.Warn("the worker's card keeps what it had", "err", err)
		return false
	}
	return true
}

// turn has clients find the worker, or not, and says so when it is not as it was.
func (w *Worker) turn(v view, again bool) {
	log, text := w.cfg.Log, "the engine "+v.word
	switch {
	case v.why == nil && !again:
		log.Info(text + ": the worker is offered")
	case v.word == "drains":
		log.Info(text + ": the worker is offered to nobody until it takes requests again")
	case v.word == "is away", v.word == "has no sidecar":
		log.Warn(text+": the worker is offered to nobody until that has changed", "err", v.why)
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
