package loop

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/drive"
)

const (
	// rounds is how often a link is measured before it is called broken or too slow: a busy
	// host, or a wire mover that has just ended, is neither.
	rounds = 3
	// betweenRounds lets a wire mover that ended have a successor.
	betweenRounds = 500 * time.Millisecond
	// afterJobs is how long a stage is left alone after hand-offs.
	afterJobs = time.Second
)

// probed is what the probes of a pair found.
type probed struct {
	measured choice.Measured
	at       time.Time // zero: not measured
	expected choice.Expected
	finding  choice.Finding
	lesser   bool // the newest event says that it is worth less than it should be

	running bool
	round   int
	failed  error // of the last round; nil: none has failed
	waiters []func()
}

// reads reports whether this rank may read from p at all.
func (s *Sidecar) reads(p handoff.Member) bool {
	return s.cfg.Record.Role != discovery.Prefill && s.roles[p.Incarnation] != discovery.Decode
}

// staged reports whether chunks are how this rank reads from a peer: the link can be measured.
func (s *Sidecar) staged(p handoff.Member) bool {
	pr := s.pairs[p]
	return pr != nil && s.staging != nil && pr.choice.Transport != "" && !pr.choice.Maps()
}

// standing are the links that can be measured and whose wire mover is up.
func (g *staging) standing() []handoff.Member {
	return slices.DeleteFunc(g.s.sortedPairs(), func(p handoff.Member) bool { return !g.s.staged(p) || !g.up[g.route(p)] || !g.s.reads(p) })
}

// probe measures the link to a peer; done follows on the loop's goroutine, with or without a
// new measurement. It is for pairs whose chunks come by staging; others are done at once.
func (s *Sidecar) probe(p handoff.Member, done func()) {
	if !s.staged(p) {
		done()
		return
	}
	pr := s.pairs[p]
	pr.waiters = append(pr.waiters, done)
	if !pr.running {
		pr.running, pr.round, pr.failed = true, 0, nil
		s.staging.round(p, pr, choice.Measured{})
	}
}

// round measures once more; best is what the rounds before it found.
func (g *staging) round(p handoff.Member, pr *pair, best choice.Measured) {
	g.stage.Probe(peerID(p), func(m choice.Measured, err error) {
		pr.round, pr.failed = pr.round+1, err
		if errors.Is(err, drive.ErrLate) {
			pr.round++ // it has waited as long as two
		}
		if m.Rate > best.Rate {
			best = m
		}
		switch {
		case g.s.pairs[p] != pr || errors.Is(err, drive.ErrProbe):
			g.settled(pr)
		case err != nil && pr.round < rounds:
			g.again(p, pr, best)
		case err != nil && best.Rate == 0:
			g.judge(p, pr, best, choice.Baseline{}, clip(err.Error()))
		default:
			g.compare(p, pr, best)
		}
	})
}

// again begins the next round a while later.
func (g *staging) again(p handoff.Member, pr *pair, best choice.Measured) {
	g.s.work.Go(func() {
		pause.For(g.s.ctx, betweenRounds)
		g.s.post(func() { g.round(p, pr, best) })
	})
}

// compare sets what was measured against what this host does by itself at the same time.
func (g *staging) compare(p handoff.Member, pr *pair, m choice.Measured) {
	g.s.work.Go(func() {
		var b choice.Baseline
		if g.cfg.Baseline != nil {
			b = g.cfg.Baseline(g.s.ctx)
		}
		g.s.post(func() { g.judge(p, pr, m, b, "") })
	})
}

func (g *staging) judge(p handoff.Member, pr *pair, m choice.Measured, b choice.Baseline, broken string) {
	e := choice.Expect(pr.choice, g.s.own(), pr.end, b)
	f := choice.Judge(pr.choice, m, e, broken)
	if f.Verdict == choice.Degraded && pr.choice.Way != choice.Emulation && pr.round < rounds {
		g.again(p, pr, m)
		return
	}
	if g.s.pairs[p] == pr && g.s.staged(p) {
		pr.measured, pr.at, pr.expected = m, time.Now(), e
		g.s.found(p, f)
	}
	g.settled(pr)
}

// unanswered is what a link is worth whose probe has not ended though somebody waits for it:
// what was measured before says nothing of it.
func (pr *pair) unanswered() choice.Finding {
	if pr.failed != nil {
		return choice.Judge(pr.choice, choice.Measured{}, choice.Expected{}, clip(pr.failed.Error()))
	}
	return choice.Finding{Verdict: choice.Unmeasured, Cause: "its probe did not end within " + control.ProbeTime.String(),
		Fix: "ask again: those of other links came first, or a wire mover does not answer"}
}

// settled ends the probe of a pair.
func (g *staging) settled(pr *pair) {
	pr.running = false
	for _, done := range pr.waiters {
		done()
	}
	pr.waiters = nil
}

// soon measures what was never measured, once hand-offs have left the stage alone.
func (g *staging) soon() {
	if g.soonOn {
		return
	}
	g.soonOn = true
	g.s.work.Go(func() {
		pause.For(g.s.ctx, afterJobs)
		g.s.post(func() {
			g.soonOn = false
			for _, p := range g.standing() {
				if g.s.pairs[p].at.IsZero() {
					g.s.probe(p, func() {})
				}
			}
		})
	})
}

// every measures one link a period, that which was measured longest ago.
func (g *staging) every(ctx context.Context, period time.Duration) {
	for pause.For(ctx, period); ctx.Err() == nil; pause.For(ctx, period) {
		g.s.post(func() {
			if ps := g.standing(); len(ps) > 0 {
				oldest := slices.MinFunc(ps, func(a, b handoff.Member) int { return g.s.pairs[a].at.Compare(g.s.pairs[b].at) })
				g.s.probe(oldest, func() {})
			}
		})
	}
}

// Wire implements drive.Owner.
func (g *staging) Wire(r drive.Route, err error) {
	if err != nil {
		delete(g.up, r)
		if !errors.Is(err, drive.ErrIdle) {
			g.s.cfg.Metrics.WireMoverLost()
		}
		return
	}
	g.up[r] = true
	g.soon()
}

// AskPlace implements drive.Owner.
func (g *staging) AskPlace(p transfer.PeerID, n uint64, bytes int64) {
	if to, up := g.ids[p]; up {
		g.s.toPeer(machine.ToPeer{Peer: to, Msg: handoff.ProbeAsk{N: n, Bytes: bytes}})
	}
}

// TellPlace implements drive.Owner.
func (g *staging) TellPlace(p transfer.PeerID, n uint64, at drive.Place, why error) {
	to, up := g.ids[p]
	if !up {
		return
	}
	m := handoff.ProbeAt{N: n, Wire: uint64(at.Wire), Port: at.Port, Bytes: at.Bytes}
	if why != nil {
		m.Busy, m.Why = errors.Is(why, drive.ErrProbe), clip(why.Error())
	}
	g.s.toPeer(machine.ToPeer{Peer: to, Msg: m})
}

// place hands the answer to AskPlace to the stage.
func (g *staging) place(p handoff.Member, m handoff.ProbeAt) {
	var why error
	switch {
	case m.Busy:
		why = drive.ErrProbe
	case m.Why != "":
		why = errors.Join(transfer.ErrPeer, errors.New(p.Name()+" says: "+m.Why))
	}
	g.stage.Place(peerID(p), m.N, drive.Place{Wire: staged.Incarnation(m.Wire), Port: m.Port, Bytes: m.Bytes}, why)
}

// clip keeps a reason within what a message may hold: a mover's last words are long, and may
// be no UTF-8.
func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 1024)], "") }
