package drive

import (
	"errors"
	"fmt"

	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
)

// half says whose an event is.
type half uint8

const (
	source half = 1 << iota
	dest
	both = source | dest
)

// step feeds the halves, and what that makes of it, until nothing is left. An effect that
// causes an event waits for its turn: effects are valid until the next step.
func (s *Stage) step(e any, h half) {
	if h&source != 0 {
		s.events = append(s.events, e.(staged.SourceEvent))
	}
	if h&dest != 0 {
		s.events = append(s.events, toDest{e.(staged.DestEvent)})
	}
	if s.busy {
		return
	}
	s.busy = true
	for len(s.events) > 0 {
		e := s.events[0]
		s.events = s.events[1:]
		switch e := e.(type) {
		case toDest:
			for _, f := range s.dst.Step(e.DestEvent) {
				s.destEffect(f)
			}
		case staged.SourceEvent:
			for _, f := range s.src.Step(e) {
				s.sourceEffect(f)
			}
		}
	}
	s.busy, s.events = false, nil
}

// toDest marks an event of the destination half: some are of both.
type toDest struct{ staged.DestEvent }

func (s *Stage) sourceEffect(f staged.SourceEffect) {
	switch f := f.(type) {
	case staged.AskGrant:
		if k := s.wanted; k != nil && k.job == f.Job { // it is taken
			s.serves[f.Job], s.grants[f.Grant] = k, k
		}
		s.cfg.Owner.AskGrant(f.Grant, f.Peer, f.Job, f.Pin)
	case staged.EndGrant:
		delete(s.grants, f.Grant)
		s.cfg.Owner.EndGrant(f.Grant)
	case staged.Pack:
		s.pack(f)
	case staged.Served:
		delete(s.serves, f.Job)
	default:
		s.either(f, source)
	}
}

func (s *Stage) destEffect(f staged.DestEffect) {
	switch f := f.(type) {
	case staged.Fetch:
		s.fetch(f)
	case staged.CancelFetch:
		if cancel := s.fetches[f.Ticket]; cancel != nil {
			cancel()
		}
	case staged.Unpack:
		s.unpack(f)
	case staged.CancelUnpack:
		if t := s.unpacks[f.Ticket]; t != nil {
			t.Cancel()
		}
	case staged.JobDone:
		k := s.pulls[f.Job]
		delete(s.pulls, f.Job)
		if k != nil {
			s.cfg.Owner.Done(f.Job, k.moved, k.because(f.Why))
		}
	default:
		s.either(f, dest)
	}
}

// failed keeps why a ticket of the pull failed: its reason alone names no cause.
func (k *pull) failed(err error) error {
	if k != nil && k.cause == nil {
		k.cause = err
	}
	return err
}

// because is how the pull ended: with the cause, where a ticket's failure ended it.
func (k *pull) because(why staged.Reason) error {
	switch is := why.Err(); {
	case why == staged.Canceled && k.unstarted != nil:
		return k.unstarted
	case is == nil, k.cause == nil:
		return is
	case errors.Is(k.cause, is):
		return k.cause
	case why != reason(k.cause):
		return is
	default:
		return fmt.Errorf("%w: %w", is, k.cause)
	}
}

// either carries out what both halves may want.
func (s *Stage) either(f any, h half) {
	switch f := f.(type) {
	case staged.Send:
		s.send(f)
	case staged.KillWire:
		s.killWire(f.Peer, f.Wire)
	case staged.Await:
		s.await(f.Ticket, h)
	case staged.Refuse:
		s.cfg.Owner.Refused(f.Peer, f.Msg, f.Why)
	}
}

// send sends to the peer; an offer once its wire mover serves it.
func (s *Stage) send(f staged.Send) {
	switch m := f.Msg.(type) {
	case staged.Want:
		k := s.pulls[m.Job]
		s.cfg.Owner.Send(f.Peer, m, Extra{Spec: &Spec{Chunk: k.bytes, Tokens: k.own.Tokens, Moves: k.moves}})
	case staged.Offer:
		s.expose(f.Peer, m)
	case staged.Gone:
		if s.lacking && m.Why == staged.Canceled {
			m.Why = staged.Mover // nobody wanted it canceled
		}
		s.cfg.Owner.Send(f.Peer, m, Extra{})
	default:
		s.cfg.Owner.Send(f.Peer, m, Extra{})
	}
}

// await says that the patience with a ticket has run out.
func (s *Stage) await(ticket uint64, h half) {
	s.work.Go(func() {
		if pause.For(s.ctx, s.cfg.Patience) {
			s.post(func() { s.step(staged.Overdue{Ticket: ticket}, h) })
		}
	})
}

// reason is how a ticket of a mover ended.
func reason(err error) staged.Reason {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, staged.ErrStamp):
		return staged.BadStamp
	case errors.Is(err, transfer.ErrMover):
		return staged.Mover
	case errors.Is(err, transfer.ErrCanceled):
		return staged.Canceled
	}
	return staged.Transfer
}
