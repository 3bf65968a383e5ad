package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/layout"
)

// maxMeet bounds the sessions that one Links call opens.
const maxMeet = 64

// Links tells how this rank reads from ranks of other groups, those that discovery shows
// and that it has not met included.
func (v Service) Links(ctx context.Context, q control.LinksQuery) (control.Links, error) {
	var met []handoff.Member
	if q.Meet {
		if _, err := v.wait(ctx, control.MeetTime, func(end func()) int { met = v.s.meetAll(end); return len(met) }); err != nil {
			return control.Links{}, err
		}
	}
	late := false
	if q.Probe {
		var err error
		if late, err = v.wait(ctx, control.ProbeTime, v.s.probeAll); err != nil {
			return control.Links{}, err
		}
	}
	l := control.Links{Self: v.s.cfg.Machine.Self, Offers: v.s.cfg.End.Offers}
	err := v.ask(ctx, func() { l.Links = v.s.allLinks(late, met) })
	if n := len(l.Links); n > control.MaxLinks {
		l.Links, l.More = l.Links[:control.MaxLinks], int32(n-control.MaxLinks)
	}
	return l, err
}

// wait has begin start something on the loop's goroutine, and waits for as many ends as it
// says, for as long as limit; late: not all of them came.
func (v Service) wait(ctx context.Context, limit time.Duration, begin func(end func()) int) (late bool, err error) {
	ends, n := make(chan struct{}, control.MaxLinks), 0
	if err := v.ask(ctx, func() { n = begin(func() { ends <- struct{}{} }) }); err != nil {
		return false, err
	}
	enough := time.NewTimer(limit)
	defer enough.Stop()
	for range n {
		select {
		case <-ends:
		case <-enough.C:
			return true, nil
		case <-ctx.Done():
			return false, ctx.Err()
		case <-v.s.done:
			return false, errStopped
		}
	}
	return false, nil
}

// probeAll measures the links that this rank reads by.
func (s *Sidecar) probeAll(end func()) (n int) {
	for _, p := range s.sortedPairs() {
		if s.reads(p) && s.listed(p) && n < control.MaxLinks {
			n++
			s.probe(p, end)
		}
	}
	return n
}

// meetAll opens sessions to ranks that this one may read from, which it returns.
func (s *Sidecar) meetAll(end func()) []handoff.Member {
	ps := s.strangers()
	ps = ps[:min(len(ps), maxMeet)]
	for _, p := range ps {
		s.meeting[p] = append(s.meeting[p], end)
		s.step(machine.Meet{Peer: p})
	}
	return ps
}

// met ends the wait for a session to p: it stands, or err says why it does not.
func (s *Sidecar) met(p handoff.Member, err error) {
	if err != nil {
		s.unmet[p] = err
	} else {
		delete(s.unmet, p)
	}
	for _, end := range s.meeting[p] {
		end()
	}
	delete(s.meeting, p)
}

// strangers are the ranks in view that this one may read from, and has no session with.
func (s *Sidecar) strangers() (out []handoff.Member) {
	for _, r := range s.view {
		p := handoff.Member{Group: r.Group, Rank: layout.Rank(r.Rank), Incarnation: handoff.Incarnation(r.Incarnation)}
		if p.Group != s.cfg.Machine.Self.Group && s.reads(p) && s.pairs[p] == nil {
			out = append(out, p)
		}
	}
	return out
}

// seesNow takes a view of discovery.
func (s *Sidecar) seesNow(rs []discovery.Record) {
	if s.view = rs; rs == nil {
		s.view = []discovery.Record{} // seen, and nobody is there
	}
	clear(s.roles)
	for _, r := range rs {
		s.roles[handoff.Incarnation(r.Incarnation)] = r.Role
	}
	for p := range s.meeting {
		if !s.listed(p) {
			s.met(p, errNoSession) // whoever waits hears that it is gone
		}
	}
	for p := range s.unmet {
		if !s.listed(p) {
			delete(s.unmet, p)
		}
	}
	s.showLinks()
}

// departed is what a link to a rank that discovery does not show any more is worth: no hand-off
// begins with it.
var departed = choice.Finding{Verdict: choice.Unmeasured, Cause: "it has left discovery: it is gone, or it hangs",
	Fix: "nothing, if it was stopped; else look at its sidecar and its way to etcd"}

// listed reports whether discovery shows p, as far as it was seen at all.
func (s *Sidecar) listed(p handoff.Member) bool {
	_, there := s.roles[p.Incarnation]
	return there || s.view == nil
}

// allLinks are those of pairs, and what is known of strangers and of those that were to be met
// and have left discovery since; late: somebody waited for probes, and those that still run are
// no answer.
func (s *Sidecar) allLinks(late bool, met []handoff.Member) (out []handoff.Link) {
	for _, p := range met {
		if !s.listed(p) && s.pairs[p] == nil {
			out = append(out, handoff.Link{Reader: s.cfg.Machine.Self, Peer: p, Finding: departed})
		}
	}
	for _, p := range s.sortedPairs() {
		if !s.reads(p) {
			continue
		}
		l := s.link(p)
		if pr := s.pairs[p]; late && pr.running {
			l.Finding, l.Measured, l.Ago = pr.unanswered(), choice.Measured{}, 0
		}
		if !s.listed(p) {
			l.Finding = departed
		}
		out = append(out, l)
	}
	for _, p := range s.strangers() {
		l := handoff.Link{Reader: s.cfg.Machine.Self, Peer: p, Finding: choice.Finding{Verdict: choice.Unmeasured, Cause: "the two have not met: no hand-off has needed it"}}
		if len(s.meeting[p]) > 0 && slices.Contains(met, p) {
			l.Finding = choice.Finding{Verdict: choice.Broken, Cause: "no session: it has not answered within " + control.MeetTime.String(),
				Fix: "does its sidecar run, or hang, and is the address that it advertises reachable from here?"}
		}
		if err := s.unmet[p]; err != nil {
			l.Finding = choice.Finding{Verdict: choice.Broken, Cause: "no session: " + clip(err.Error()),
				Fix: "is its sidecar up, and is the address that it advertises reachable from here?"}
		}
		out = append(out, l)
	}
	slices.SortStableFunc(out, func(a, b handoff.Link) int { return strings.Compare(a.Peer.String(), b.Peer.String()) })
	return out
}

// link is what is known of a pair.
func (s *Sidecar) link(p handoff.Member) handoff.Link {
	pr := s.pairs[p]
	l := handoff.Link{Reader: s.cfg.Machine.Self, Peer: p, Choice: pr.choice, Age: time.Since(pr.since), Measured: pr.measured,
		Expected: pr.expected.Rate, Against: pr.expected.Against, Finding: pr.finding}
	if !pr.at.IsZero() {
		l.Ago = time.Since(pr.at)
	}
	return l
}

// news tells a link's change to the leader's watchers.
func (s *Sidecar) news(l handoff.Link) {
	if l.Reader.Rank == 0 {
		s.heardNews(l)
		return
	}
	for p := range s.up {
		if p.Group == l.Reader.Group && p.Rank == 0 {
			s.toPeer(machine.ToPeer{Peer: p, Msg: handoff.LinkNews{Link: l}})
		}
	}
}

// heardNews keeps a link's change for watchers.
func (s *Sidecar) heardNews(l handoff.Link) {
	s.notices.Append(control.Notice{Kind: control.Linked, Label: fmt.Sprintf("rank %d", l.Reader.Rank), Link: &l})
}

// hearsOf takes a rank's word about its links; false: msg is something else.
func (s *Sidecar) hearsOf(p handoff.Member, msg handoff.PeerMessage) bool {
	n, is := msg.(handoff.LinkNews)
	if !is {
		return false
	}
	if self := s.cfg.Machine.Self; self.Rank != 0 || p.Group != self.Group || n.Link.Reader != p {
		s.carry(machine.Refuse{Peer: p, What: fmt.Sprintf("%T", msg), Why: machine.NotMember})
		return true
	}
	s.heardNews(n.Link)
	return true
}
