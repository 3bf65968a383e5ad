package loop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/sidecar/machine"
)

// Pauses after discovery failed: the first, and what doubling it ends at.
const (
	retry    = 500 * time.Millisecond
	retryMax = 5 * time.Second
)

// trouble is a run of failures of one thing: how long to pause, and what was told.
type trouble struct {
	wait time.Duration
	said string
}

// failed returns the pause before the next try, and whether err says something new.
func (t *trouble) failed(err error) (time.Duration, bool) {
	fresh := t.said != err.Error()
	t.wait, t.said = min(max(2*t.wait, retry), retryMax), err.Error()
	return t.wait, fresh
}

// recovered ends a run of failures. What was told of them is taken back at the level at
// which they were told: who reads warnings alone must hear that they are over.
func (s *Sidecar) recovered(t *trouble, what string, args ...any) {
	if t.said != "" {
		s.log.Warn(what, args...)
	}
	*t = trouble{}
}

// watch feeds the machine the newest view of discovery.
func (s *Sidecar) watch(ctx context.Context) {
	scope := discovery.Scope{Cluster: s.cfg.Record.Cluster, Pools: s.cfg.Pools}
	var t trouble
	for ctx.Err() == nil {
		wait := retry
		for snap, err := range s.cfg.Registry.Watch(ctx, scope) {
			if err != nil {
				var fresh bool
				if wait, fresh = t.failed(err); fresh && ctx.Err() == nil {
					s.log.Warn("discovery view is stale, watching again", "err", err)
				}
				break
			}
			s.recovered(&t, "discovery view is fresh again")
			s.seen(snap.Records)
			s.post(func() {
				s.seesNow(snap.Records)
				s.staging.found(snap.Records)
				s.step(machine.Found{Records: snap.Records})
			})
		}
		pause.For(ctx, wait)
	}
}

// seen notes which other process holds this sidecar's rank.
func (s *Sidecar) seen(rs []discovery.Record) {
	own := s.cfg.Record
	s.holder.Store(nil)
	for _, r := range rs {
		if r.Name() == own.Name() && r.Incarnation != own.Incarnation {
			s.holder.Store(&r)
		}
	}
}

// unregistered says why discovery does not show this sidecar, nil when it does.
func (s *Sidecar) unregistered() error {
	why := s.missing.Load()
	if why == nil {
		return nil
	}
	if h := s.holder.Load(); h != nil {
		return fmt.Errorf("not registered: the rank is held by pid %d on host %s, at %s", h.PID, h.Host, h.Addr)
	}
	return fmt.Errorf("not registered: %s", *why)
}

// standing sets what unregistered says; empty: registered.
func (s *Sidecar) standing(why string) {
	if why == "" {
		s.missing.Store(nil)
	} else {
		s.missing.Store(&why)
	}
}

// register keeps this sidecar's record. A lost registration is made anew; a rank that
// another live sidecar took is left to it: this one keeps what is in flight and is
// found by nobody. A record that discovery refuses is refused for ever: it ends Run.
func (s *Sidecar) register(ctx context.Context) {
	rec := s.cfg.Record
	var t trouble
	for ctx.Err() == nil {
		reg, err := s.cfg.Registry.Register(ctx, rec)
		switch {
		case ctx.Err() != nil && err != nil:
			return
		case errors.Is(err, discovery.ErrRecord):
			s.fatal <- fmt.Errorf("register: %w", err) // holds one, and register ends
			return
		case err != nil:
			wait, fresh := t.failed(err)
			if fresh {
				s.log.Error("registration failed, trying again", "err", err)
			}
			s.standing(err.Error())
			pause.For(ctx, wait)
			continue
		}
		s.standing("")
		s.log.Info("registered", "name", rec.Name(), "addr", rec.Addr)
		s.recovered(&t, "registered again", "name", rec.Name(), "addr", rec.Addr)
		err = s.keep(ctx, reg, &rec)
		s.standing("the registration was lost")
		t.said = "the registration was lost" // keep told of it
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		if err := reg.Close(closing); err != nil && !errors.Is(err, discovery.ErrLost) {
			s.log.Warn("registration not removed: it ends with its lease", "err", err)
		}
		cancel()
		if err != nil {
			s.fatal <- fmt.Errorf("update the registration: %w", err)
			return
		}
	}
}

// keep updates the record until the registration is lost or ctx ends, or discovery
// refuses the record. An update that failed is tried again with the newest advert.
func (s *Sidecar) keep(ctx context.Context, reg discovery.Registration, rec *discovery.Record) error {
	var t trouble
	again := time.NewTimer(0)
	<-again.C
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-reg.Lost():
			s.log.Warn("registration lost", "name", rec.Name())
			return nil
		case a := <-s.adverts:
			again.Stop()
			rec.Instance, rec.Ranks, rec.Geometry = uint64(a.Instance), a.Ranks, a.Geometry
			rec.Draining = a.Draining
			rec.CapacityBlocks, rec.CapacitySlots = discovery.Class(a.CapacityBlocks), discovery.Class(a.CapacitySlots)
		case <-again.C:
		}
		err := reg.Update(ctx, *rec)
		switch {
		case errors.Is(err, discovery.ErrRecord):
			return err
		case err == nil:
			s.recovered(&t, "discovery record updated", "name", rec.Name())
		case ctx.Err() == nil && !errors.Is(err, discovery.ErrLost): // of a lost one, Lost tells
			wait, fresh := t.failed(err)
			if fresh {
				s.log.Warn("discovery record not updated, trying again", "err", err)
			}
			again.Reset(wait)
		}
	}
}

func (s *Sidecar) advertise(a machine.Advertise) {
	select {
	case <-s.adverts: // newest wins
	default:
	}
	s.adverts <- a
}
