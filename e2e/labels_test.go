package e2e

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/handoff"
)

// hears reports whether the engine was told something but decisions.
func (s *scripted) hears(is func(handoff.ToEngine) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.others, is)
}

// TestRanksExportUnlikeLabels: a label that one rank alone exports ends at both ranks, with a
// reason, and rank 0's sidecar says who is missing.
func TestRanksExportUnlikeLabels(t *testing.T) {
	engines := map[string][]*scripted{}
	w := up(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid", func(o *dev.Options) {
		o.Lease = time.Second
		o.Engine = func(ctx context.Context, g *dev.Running, rank int32, dir string) error {
			s, err := attachScripted(ctx, g, rank, model.Hybrid(1), dir)
			if err == nil {
				engines[g.Name] = append(engines[g.Name], s)
				t.Cleanup(s.close)
			}
			return err
		}
	})
	for i, s := range engines[w.prefill.Name] {
		e := handoff.Export{Label: []string{"u0", "u1"}[i], Blocks: []int32{4, 5, 6}, Slot: 2, Tokens: 3 * block, Position: 3 * block}
		if i == 0 {
			e.Resume.Tokens = []int32{9}
		}
		if err := s.Send(e); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "rank 0's export fails", func() bool {
		return engines[w.prefill.Name][0].hears(func(m handoff.ToEngine) bool {
			f, ok := m.(handoff.Failed)
			return ok && f.Label == "u0" && errors.Is(f.Err, handoff.ErrDeadline) && strings.Contains(f.Err.Error(), "ranks [1]")
		})
	})
	eventually(t, "rank 1's memory comes back", func() bool {
		return engines[w.prefill.Name][1].hears(func(m handoff.ToEngine) bool {
			u, ok := m.(handoff.UnpinExport)
			return ok && u.Label == "u1"
		})
	})
	for _, want := range []string{`ranks [1] of group ` + w.prefill.Name + ` pin nothing of \"u0\"`, `ranks [0] of group ` + w.prefill.Name + ` pin nothing of \"u1\"`} {
		eventually(t, "a line says "+want, func() bool { return strings.Contains(w.log.String(), want) })
	}
}
