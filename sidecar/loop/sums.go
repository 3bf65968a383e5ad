package loop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/sidecar/metrics"
	"github.com/batonkv/baton/transfer"
)

// maxAdding is how many sums the mover makes at once: each takes the processors that copies
// leave.
const maxAdding = 2

// sumTries is how often a sum is asked for when movers die under it: it reads alone. A while
// passes between two, in which the next mover comes up.
const sumTries = 3

// verify carries out what is about sums.
func (s *Sidecar) verify(f machine.Effect) {
	switch f := f.(type) {
	case machine.Sum:
		s.toAdd = append(s.toAdd, f)
		s.addUp()
	case machine.Unsummed:
		s.log.Error("an export goes without sums: importers that verify all refuse it", "label", f.Label, "err", f.Err)
	case machine.Compared:
		s.cfg.Metrics.Compared(f.Equal, f.Differ, f.Skipped)
		if f.Differ > 0 { // an operator reads this alone
			s.log.Error("what was read is not what was exported: the import fails", "handoff", f.ID, "label", f.Label, "source", f.Peer, "why", f.Why)
		}
	}
}

// addUp begins the sums that wait, aside.
func (s *Sidecar) addUp() {
	for s.adding < maxAdding && len(s.toAdd) > 0 {
		f := s.toAdd[0]
		s.toAdd = s.toAdd[1:]
		adder, ok := s.cfg.Backend.(transfer.Summer)
		if !ok {
			s.local = append(s.local, machine.Summed{Ticket: f.Ticket, Err: fmt.Errorf("%w: backend %s adds up nothing", transfer.ErrMemory, s.cfg.Backend.Name())})
			continue
		}
		s.adding++
		s.work.Go(func() {
			began := time.Now()
			made, err := sum(s.ctx, adder, f)
			took := time.Since(began)
			s.post(func() {
				s.adding--
				s.cfg.Metrics.Took(metrics.Sum, took)
				s.step(machine.Summed{Ticket: f.Ticket, Sums: made, Err: err})
				s.addUp()
			})
		})
	}
}

func sum(ctx context.Context, adder transfer.Summer, f machine.Sum) (made []uint64, err error) {
	var t trouble
	for tries := 1; ; tries++ {
		if made, err = adder.Sum(ctx, &f.Job); !errors.Is(err, transfer.ErrMover) || tries == sumTries || ctx.Err() != nil {
			return made, err
		}
		wait, _ := t.failed(err)
		pause.For(ctx, wait)
	}
}
