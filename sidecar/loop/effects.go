package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/sidecar/metrics"
	"github.com/batonkv/baton/transfer"
)

// carry does one effect. Nothing here waits.
func (s *Sidecar) carry(f machine.Effect) {
	switch f := f.(type) {
	case machine.ToEngine:
		s.toEngine(f)
	case machine.CloseEngine:
		if es := s.sessions[f.Session]; es != nil {
			s.log.Warn("engine session refused", "err", f.Err)
			es.Close(f.Err)
		}
	case machine.ExpectBuffers:
		s.engines.ExpectFDs(f.Key, f.Buffers)
	case machine.MapBuffers:
		s.mapBuffers(f)
	case machine.UnmapBuffers:
		s.unmap(f.Session)
	case machine.ToPeer:
		s.toPeer(f)
	case machine.Dial:
		s.peers.Dial(f.Addr, f.Peer)
	case machine.ClosePeer:
		for _, ps := range s.up[f.Peer] {
			ps.Close(nil)
		}
	case machine.ShareBuffers:
		s.share(f)
	case machine.OpenLink:
		s.openLink(f)
	case machine.CloseLink:
		s.closeLink(f.Peer)
	case machine.Pull:
		s.pull(f)
	case machine.Sum, machine.Unsummed, machine.Compared:
		s.verify(f)
	case machine.CancelPull:
		if t := s.tickets[f.Ticket]; t != nil {
			t.Cancel()
		}
	case machine.Granted, machine.GrantRefused, machine.Revoked:
		s.staging.answer(f)
	case machine.KillMover:
		s.log.Warn("copies do not stop: the mover is killed", "pid", s.cfg.MoverPID())
		s.cfg.KillMover()
	case machine.Reply:
		if ch := s.calls[f.Call]; ch != nil {
			ch <- f // holds one
			delete(s.calls, f.Call)
		}
	case machine.Notify:
		s.outcome(f.Notice)
		s.notify(f.Notice)
	case machine.Publish:
		s.publish(f.Event)
	case machine.Advertise:
		s.advertise(f)
	case machine.Refuse:
		s.refuse(f)
	}
}

func (s *Sidecar) refuse(f machine.Refuse) {
	s.cfg.Metrics.Dropped(reason(f.Why))
	s.refused[f.What]++
	level := slog.LevelWarn
	switch f.What {
	case "Checked", "Opened", "DoneAck":
		if f.Why == machine.Unmatched { // to an import that ended meanwhile
			level = slog.LevelDebug
		}
	}
	if f.Why == machine.Launch {
		s.log.Warn("rank waits: "+string(f.Why), "from", f.Peer)
		return
	}
	s.log.Log(s.ctx, level, "message refused", "from", f.Peer, "type", f.What, "why", f.Why)
}

func (s *Sidecar) toEngine(f machine.ToEngine) {
	es := s.sessions[f.Session]
	if es == nil {
		return // its end is on the way
	}
	if err := es.Send(f.Msg); err != nil {
		s.unsent("engine session", err)
		es.Close(err) // a message that does not arrive may not be followed by others
		return
	}
	if _, mapped := f.Msg.(handoff.MoverStarted); mapped {
		s.cached.attached(es, s.attached[es])
	}
}

func (s *Sidecar) toPeer(f machine.ToPeer) {
	if f.Peer == s.cfg.Machine.Self {
		s.local = append(s.local, machine.FromPeer{Peer: f.Peer, Msg: f.Msg})
		return
	}
	ss := s.up[f.Peer]
	if len(ss) == 0 {
		return // its end is on the way, or the machine hears of it
	}
	if err := ss[0].Send(f.Msg); err != nil {
		s.unsent("session of "+f.Peer.String(), err)
		ss[0].Close(err) // a message that does not arrive may not be followed by others
	}
}

// unsent tells of a message that a session did not take. That it has ended is told when
// it ends; that the message is over a bound is told nowhere else.
func (s *Sidecar) unsent(where string, err error) {
	if errors.Is(err, handoff.ErrBound) {
		s.log.Error("message not sent, session ends", "where", where, "err", err)
		return
	}
	s.log.Debug("message not sent", "where", where, "err", err)
}

// pull submits a job and waits for its ticket aside.
func (s *Sidecar) pull(f machine.Pull) {
	if s.stage != running {
		s.local = append(s.local, machine.PullDone{Ticket: f.Ticket, Err: errStopped})
		return
	}
	if s.staging.pull(f) {
		return
	}
	l := s.links[f.Peer]
	if l == nil {
		s.local = append(s.local, machine.PullDone{Ticket: f.Ticket, Err: fmt.Errorf("%w: the link to %v is gone", transfer.ErrPeer, f.Peer)})
		return
	}
	t, err := l.Pull(s.ctx, f.Template, f.Job)
	if err != nil {
		s.local = append(s.local, machine.PullDone{Ticket: f.Ticket, Err: err})
		return
	}
	s.tickets[f.Ticket] = t
	by := s.cfg.Backend.Name()
	if pr := s.pairs[f.Peer]; pr != nil {
		by = pr.choice.Transport
	}
	s.work.Go(func() {
		<-t.Done()
		s.post(func() {
			delete(s.tickets, f.Ticket)
			s.cfg.Metrics.Moved(by, t.Bytes())
			s.step(machine.PullDone{Ticket: f.Ticket, Bytes: t.Bytes(), Err: t.Err()})
		})
	})
}

// openLink fetches a peer's descriptors and maps them, aside, or has its memory staged. What
// could not be mapped for an earlier link is tried again: the mover, and what it had no way
// to, may be others by then.
func (s *Sidecar) openLink(f machine.OpenLink) {
	s.places(f.Peer, placeOf(f.Buffers.Cards, func(c handoff.BufferCard) *handoff.GPUMemory { return c.GPU }))
	if _, c := s.mappable(f.Peer); !c.Maps() {
		s.local = append(s.local, machine.Linked{Peer: f.Peer, Err: s.stages(f.Peer, f.Buffers.Chunk)})
		return
	}
	s.work.Go(func() {
		l, err := s.connect(s.ctx, f.Peer, f.Buffers)
		ok := s.post(func() {
			if err != nil {
				err = s.unmappable(f.Peer, f.Buffers.Chunk, err)
			}
			if err == nil && l != nil {
				s.links[f.Peer] = l
			}
			s.linked(f.Peer, l, err)
			s.step(machine.Linked{Peer: f.Peer, Err: err})
		})
		if !ok && l != nil {
			s.close(f.Peer, l)
		}
	})
}

func (s *Sidecar) connect(ctx context.Context, p handoff.Member, b handoff.Buffers) (transfer.Link, error) {
	if b.Host != s.host {
		return nil, fmt.Errorf("%w: %v is on another host: memory of one host alone can be mapped", transfer.ErrMemory, p)
	}
	regions, err := s.fetch(ctx, b)
	if err != nil {
		return nil, err
	}
	return s.cfg.Backend.Open(ctx, transfer.Peer{ID: transfer.PeerID(p.String()), Regions: regions})
}

func (s *Sidecar) closeLink(p handoff.Member) {
	if s.staging != nil {
		delete(s.staging.links, p)
	}
	if l := s.links[p]; l != nil {
		delete(s.links, p)
		s.letGo(p, l)
	}
}

// letGo closes a link aside.
func (s *Sidecar) letGo(p handoff.Member, l transfer.Link) { s.work.Go(func() { s.close(p, l) }) }

func (s *Sidecar) close(p handoff.Member, l transfer.Link) {
	if err := l.Close(); err != nil && !errors.Is(err, transfer.ErrMover) {
		s.log.Warn("close link", "peer", p, "err", err)
	}
}

func (s *Sidecar) publish(e events.Event) {
	r := s.cfg.Record
	e.Time, e.Cluster, e.Pool, e.Group = time.Now(), r.Cluster, r.Pool, r.Group
	e.Rank, e.Incarnation = r.Rank, r.Incarnation
	s.cfg.Publisher.Publish(e)
	if e.Kind == events.Expired {
		s.cfg.Metrics.Handoff(metrics.Expired)
		if e.Cause != "" {
			s.log.Warn("an export ends that not every rank has", "handoff", e.Handoff, "label", e.Label, "err", e.Cause)
		}
	}
	s.log.Debug("event", "kind", e.Kind, "handoff", e.Handoff, "label", e.Label, "cause", e.Cause)
}

// outcome counts how imports end.
func (s *Sidecar) outcome(n machine.Notice) {
	m := s.cfg.Metrics
	switch n.Kind {
	case machine.NoticeImported:
		m.Handoff(metrics.Admitted)
		p := n.Imported.Phases
		m.Took(metrics.Open, p.Open)
		m.Took(metrics.Reserve, p.Reserve)
		m.Took(metrics.Move, p.Move)
		m.Took(metrics.Check, p.Check)
		m.Took(metrics.Done, p.Done)
		m.Took(metrics.Admit, p.Admit)
	case machine.NoticeFailed:
		if errors.Is(n.Err, handoff.ErrAborted) {
			m.Handoff(metrics.Aborted)
		} else {
			m.Handoff(metrics.Failed)
		}
	}
}

// reason is the metric's word for why the machine did not act on a message.
func reason(why machine.Why) metrics.Reason {
	switch why {
	case machine.Unmatched:
		return metrics.Unmatched
	case machine.Malformed:
		return metrics.Malformed
	case machine.TooMany:
		return metrics.Full
	case machine.Key, machine.Importer:
		return metrics.Forbidden
	}
	return metrics.Stale
}
