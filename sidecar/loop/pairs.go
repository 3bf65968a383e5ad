package loop

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/metrics"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
)

// pair is this rank and a rank of another group, for as long as their session stands.
type pair struct {
	end    choice.End    // what the peer says of itself
	wire   choice.Choice // which transport moves chunks between the two, either way
	choice choice.Choice // how this rank reads
	memory choice.Memory // what choice rests on
	err    error         // there is no way
	since  time.Time     // of choice
	probed
}

// own is what this sidecar says of itself.
func (s *Sidecar) own() choice.End {
	e := s.cfg.End
	e.Name, e.Host = s.cfg.Machine.Self.Name(), s.host
	return e
}

// meet chooses how to read from a peer whose session stands. Ranks of one group never read
// from each other.
func (s *Sidecar) meet(p handoff.Member, end choice.End) {
	if p.Group == s.cfg.Machine.Self.Group {
		return
	}
	pr := &pair{end: end}
	pr.wire, _ = choice.Wire(s.own(), end)
	s.pairs[p] = pr
	s.choose(p, choice.Memory{Own: s.place})
}

// places chooses again where a peer's memory, or this rank's, is not where it was thought to be.
func (s *Sidecar) places(p handoff.Member, at choice.Place) {
	pr := s.pairs[p]
	if pr == nil || pr.memory.Own == s.place && pr.memory.Peer == at {
		return
	}
	m := choice.Memory{Own: s.place, Peer: at}
	if c, _ := choice.Choose(s.own(), pr.end, m); c != pr.choice {
		s.choose(p, m)
	}
	pr.memory = m
}

// choose chooses anew, by what is known of the memory of both.
func (s *Sidecar) choose(p handoff.Member, m choice.Memory) {
	pr := s.pairs[p]
	before := pr.choice.Transport
	pr.choice, pr.err = choice.Choose(s.own(), pr.end, m)
	if pr.choice.Transport != before { // what another one did says nothing
		pr.measured, pr.at, pr.expected = choice.Measured{}, time.Time{}, choice.Expected{}
	}
	pr.memory, pr.since = m, time.Now()
	s.log.Info("transport chosen", "peer", p, "transport", pr.choice.Transport, "code", pr.choice.Code, "why", pr.choice.Why)
	was := pr.finding.Verdict
	if s.found(p, choice.Judge(pr.choice, pr.measured, choice.Expected{}, "")); pr.finding.Verdict == was || pr.finding.Verdict == choice.Unmeasured {
		s.tell(p) // else found has told
	}
}

// found notes what a link is worth, and tells of it when that is another verdict.
func (s *Sidecar) found(p handoff.Member, f choice.Finding) {
	pr := s.pairs[p]
	was := pr.finding.Verdict
	pr.finding = f
	if f.Verdict == was || f.Verdict == choice.Unmeasured || !s.reads(p) {
		s.showLinks()
		return
	}
	s.tell(p)
	s.event(p)
	level := slog.LevelInfo
	if f.Verdict != choice.Good {
		level = slog.LevelWarn
	} else if was == "" || was == choice.Unmeasured {
		level = slog.LevelDebug
	}
	s.log.Log(s.ctx, level, "link is "+string(f.Verdict), "peer", p, "transport", pr.choice.Transport, "cause", f.Cause, "fix", f.Fix,
		"bytes-per-s", int64(pr.measured.Rate), "expected", int64(pr.expected.Rate), "latency", pr.measured.Latency)
}

// sortedPairs are the peers of pairs, in one order.
func (s *Sidecar) sortedPairs() []handoff.Member {
	return slices.SortedFunc(maps.Keys(s.pairs), func(a, b handoff.Member) int { return strings.Compare(a.String(), b.String()) })
}

// mappable is how a peer's memory would be read if it could be mapped, whatever came of that
// before: each new link finds out for itself.
func (s *Sidecar) mappable(p handoff.Member) (m choice.Memory, c choice.Choice) {
	if pr := s.pairs[p]; pr != nil {
		m = choice.Memory{Own: pr.memory.Own, Peer: pr.memory.Peer}
		c, _ = choice.Choose(s.own(), pr.end, m)
	}
	return m, c
}

// stages has a peer's memory come by staging, from chunks of that size, or says why it cannot.
func (s *Sidecar) stages(p handoff.Member, chunk int64) error {
	pr := s.pairs[p]
	switch {
	case pr == nil:
		return errNoSession
	case pr.err != nil:
		return pr.err
	case s.staging == nil:
		return errNoStaging
	}
	s.staging.links[p] = chunk
	return nil
}

var (
	errNoSession = errors.New("its session has ended")
	errNoStaging = errors.New("this sidecar has no staging: set staging.transport")
)

// unmappable goes over to staging after the memory of a peer of this host could not be had:
// its socket may lie in another mount namespace, or its GPU be out of reach. Without staging
// the failure stays.
func (s *Sidecar) unmappable(p handoff.Member, chunk int64, why error) error {
	m, c := s.mappable(p)
	apart := errors.Is(why, handoff.ErrGone) || c.Transport == choice.CUDAIPC && errors.Is(why, transfer.ErrMemory)
	if !apart || s.ctx.Err() != nil || !s.staging.reaches(p) {
		return why
	}
	if m.Unmapped = clip(why.Error()); s.pairs[p].memory != m {
		s.choose(p, m)
	}
	return s.stages(p, chunk)
}

// linked notes that a peer's memory was mapped, or why it was not: mapped, or staged.
func (s *Sidecar) linked(p handoff.Member, l transfer.Link, err error) {
	pr := s.pairs[p]
	if pr != nil && l != nil && !pr.choice.Maps() { // what kept it from being mapped is over
		m, _ := s.mappable(p)
		s.choose(p, m)
	}
	switch {
	case pr == nil || !pr.choice.Maps():
	case err != nil:
		s.found(p, choice.Judge(pr.choice, pr.measured, choice.Expected{}, clip(err.Error())))
	default:
		s.found(p, choice.Finding{Verdict: choice.Good})
	}
}

// tell tells watchers and metrics of a pair's newest state.
func (s *Sidecar) tell(p handoff.Member) {
	s.showLinks()
	if s.reads(p) {
		s.news(s.link(p))
	}
}

// event publishes that a link became worth less than it should be, or that again.
func (s *Sidecar) event(p handoff.Member) {
	pr := s.pairs[p]
	by := ""
	if t := pr.choice.Transport; t != "" {
		by = t + ": "
	}
	switch f := pr.finding; {
	case f.Verdict == choice.Degraded || f.Verdict == choice.Broken:
		pr.lesser = true
		s.publish(events.Event{Kind: events.Degraded, Peer: p.Name(), Cause: by + string(f.Verdict) + ": " + f.Cause})
	case pr.lesser:
		pr.lesser = false
		s.publish(events.Event{Kind: events.Restored, Peer: p.Name(), Cause: by + string(f.Verdict)})
	}
}

// maxShown bounds the pairs that metrics show one by one.
const maxShown = 256

// showLinks is what scrapes see of pairs.
func (s *Sidecar) showLinks() {
	var out []metrics.Link
	for _, p := range s.sortedPairs() {
		if pr := s.pairs[p]; s.reads(p) && len(out) < maxShown {
			if n := len(out); n > 0 && out[n-1].Peer == p.Name() {
				out = out[:n-1] // an earlier process of that rank
			}
			out = append(out, metrics.Link{Peer: p.Name(), Transport: pr.choice.Transport, Way: string(pr.choice.Way), Code: string(pr.choice.Code),
				Fallback: pr.choice.Code.Fallback(), Verdict: string(pr.finding.Verdict), Rate: pr.measured.Rate, Expected: pr.expected.Rate,
				Latency: pr.measured.Latency})
		}
	}
	s.shown.Store(&out)
}
