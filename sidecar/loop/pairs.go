package loop

import (
	"errors"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
)

// pair is this rank and a peer that it may read from, for as long as their session stands.
type pair struct {
	end    choice.End    // what the peer says of itself
	wire   choice.Choice // which transport moves chunks between the two, either way
	choice choice.Choice // how this rank reads
	err    error         // there is no way
	since  time.Time     // of choice
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
	s.choose(p, "")
}

// choose chooses anew; unmapped is why the peer's memory could not be mapped.
func (s *Sidecar) choose(p handoff.Member, unmapped string) {
	pr := s.pairs[p]
	pr.choice, pr.err = choice.Choose(s.own(), pr.end, unmapped)
	pr.since = time.Now()
	s.log.Info("transport chosen", "peer", p, "transport", pr.choice.Transport, "code", pr.choice.Code, "why", pr.choice.Why)
}

// mapped reports whether a peer's memory is to be mapped.
func (s *Sidecar) mapped(p handoff.Member) bool {
	pr := s.pairs[p]
	return pr != nil && pr.choice.Transport == choice.Shm
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
// its socket may lie in another mount namespace. Without staging the failure stays.
func (s *Sidecar) unmappable(p handoff.Member, chunk int64, why error) error {
	if !s.staging.reaches(p) {
		return why
	}
	s.choose(p, why.Error())
	return s.stages(p, chunk)
}
