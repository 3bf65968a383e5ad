package loop

import (
	"context"
	"errors"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/machine"
)

// retry is the pause after discovery failed.
const retry = 500 * time.Millisecond

// watch feeds the machine the newest view of discovery.
func (s *Sidecar) watch(ctx context.Context) {
	scope := discovery.Scope{Cluster: s.cfg.Record.Cluster, Pools: s.cfg.Pools}
	for ctx.Err() == nil {
		for snap, err := range s.cfg.Registry.Watch(ctx, scope) {
			if err != nil {
				if ctx.Err() == nil {
					s.log.Warn("discovery view is stale, watching again", "err", err)
				}
				break
			}
			s.event(machine.Found{Records: snap.Records})
		}
		pause(ctx, retry)
	}
}

// register keeps this sidecar's record. A lost registration is made anew; a rank that
// another live sidecar took is left to it: this one keeps what is in flight and is
// found by nobody.
func (s *Sidecar) register(ctx context.Context) {
	rec := s.cfg.Record
	for ctx.Err() == nil {
		reg, err := s.cfg.Registry.Register(ctx, rec)
		if err != nil {
			if ctx.Err() == nil {
				s.log.Error("registration failed, trying again", "err", err)
			}
			pause(ctx, retry)
			continue
		}
		s.log.Info("registered", "name", rec.Name(), "addr", rec.Addr)
		s.keep(ctx, reg, &rec)
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		if err := reg.Close(closing); err != nil && !errors.Is(err, discovery.ErrLost) {
			s.log.Warn("registration not removed: it ends with its lease", "err", err)
		}
		cancel()
	}
}

// keep updates the record until the registration is lost or ctx ends.
func (s *Sidecar) keep(ctx context.Context, reg discovery.Registration, rec *discovery.Record) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-reg.Lost():
			s.log.Warn("registration lost", "name", rec.Name())
			return
		case a := <-s.adverts:
			rec.Instance, rec.Ranks, rec.Geometry = uint64(a.Instance), a.Ranks, a.Geometry
			rec.FreeBlocks, rec.FreeSlots = discovery.Class(a.FreeBlocks), discovery.Class(a.FreeSlots)
			for {
				err := reg.Update(ctx, *rec)
				if err == nil || ctx.Err() != nil || errors.Is(err, discovery.ErrLost) {
					break
				}
				s.log.Warn("discovery record not updated, trying again", "err", err)
				pause(ctx, retry)
			}
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

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
