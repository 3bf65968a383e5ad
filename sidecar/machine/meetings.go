package machine

import (
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
)

// Which object an event reaches: the same look-ups as in Step.

func (m *Machine) meetsEngine(msg handoff.FromEngine, dst []Pair) []Pair {
	label := func(l string, in input) []Pair {
		if !m.leads() {
			return dst
		}
		return append(dst, m.sourcePair(m.lead.labels[l], in))
	}
	switch msg := msg.(type) {
	case handoff.Announce:
		return label(msg.Label, inAnnounce)
	case handoff.Export:
		return label(msg.Label, inExport)
	case handoff.ExportPart:
		return label(msg.Label, inExportPart)
	case handoff.ReleaseExport:
		return label(msg.Label, inRelease)
	case handoff.Import:
		dst = append(dst, m.leaderPair(m.importOfLabel(msg), inImport))
	case handoff.AbortImport:
		dst = append(dst, m.leaderPair(m.importOfLabel(handoff.Import{Label: msg.Label}), inAbort))
	case handoff.Reserved:
		in := inReserved
		if msg.Full {
			in = inReservedFull
		}
		dst = append(dst, m.destPair(msg.N, in))
	case handoff.Fenced:
		dst = m.eachPin(dst, inPinFenced)
		dst = m.eachDest(dst, inFenced, func(*handoff.Dest) bool { return true })
	}
	return dst
}

func (m *Machine) meetsPeer(p handoff.Member, msg handoff.PeerMessage, dst []Pair) []Pair {
	switch msg := msg.(type) {
	case handoff.Check:
		return append(dst, m.pinPair(msg.Pin, inCheck))
	case handoff.Checked:
		in := inGone
		if msg.Held {
			in = inHeld
		}
		for n, d := range m.dests {
			if d.D.ID == msg.Check.ID && d.D.Attempt == msg.Check.Attempt {
				return append(dst, m.destPair(n, in))
			}
		}
		return append(dst, pairOf(destHalf, absent, in))
	case handoff.Part:
		switch {
		case p.Group != m.cfg.Self.Group && m.leads():
			return append(dst, m.leaderPair(m.importOf(msg.ID, msg.Attempt), inParts))
		case p.Group == m.cfg.Self.Group && m.joined && p == m.boss:
			return append(dst, m.destPair(msg.Reserve, inPart))
		}
		return dst
	case handoff.Leased, handoff.Extend, handoff.Unpin, handoff.Decision:
		if m.joined && p == m.boss {
			return m.meetsLeader(msg, dst)
		}
		return dst
	}
	if !m.leads() {
		return dst
	}
	switch msg := msg.(type) {
	case handoff.Open:
		return append(dst, m.sourcePair(msg.ID, inOpen))
	case handoff.Done:
		return append(dst, m.sourcePair(msg.ID, inDone))
	case handoff.Withdraw:
		return append(dst, m.sourcePair(msg.ID, inWithdraw))
	case handoff.Opened:
		in := inOpenedNo
		switch msg.Status {
		case handoff.OK:
			in = inOpenedOK
		case handoff.Pending:
			in = inOpenedPending
		}
		return append(dst, m.leaderPair(m.importOf(msg.ID, msg.Attempt), in))
	case handoff.DoneAck:
		in := inDoneNo
		if msg.Status == handoff.OK {
			in = inDoneOK
		}
		return append(dst, m.leaderPair(m.importOf(msg.ID, msg.Attempt), in))
	}
	if p.Group == m.cfg.Self.Group {
		return m.meetsRank(p, msg, dst)
	}
	return dst
}

// meetsLeader is the leader's word at a rank.
func (m *Machine) meetsLeader(msg handoff.PeerMessage, dst []Pair) []Pair {
	switch msg := msg.(type) {
	case handoff.Leased:
		return append(dst, m.pinPair(msg.Pin, inLeased))
	case handoff.Extend:
		return append(dst, m.pinPair(msg.Pin, inExtend))
	case handoff.Unpin:
		return append(dst, m.pinPair(msg.Pin, inUnpin))
	case handoff.Decision:
		if m.engine == nil || m.member == nil || msg.N <= m.engine.decided {
			return dst
		}
		switch msg.Kind {
		case handoff.Reserve:
			return append(dst, m.destPair(msg.N, inReserve))
		case handoff.Admit:
			return append(dst, m.destPair(msg.Of, inAdmit))
		case handoff.Drop:
			return append(dst, m.destPair(msg.Of, inDrop))
		case handoff.ReleaseQuarantine:
			return append(dst, m.destPair(msg.Of, inReleaseQuarantine))
		case handoff.Free:
			n := len(dst)
			for _, p := range m.pins {
				if p.ID == msg.ID || p.ID == (handoff.ID{}) && p.Label == msg.Label {
					dst = append(dst, m.pinPair(p.Info.Pin, inFree))
				}
			}
			if len(dst) == n && m.leaves(msg.Label) {
				dst = append(dst, pairOf(pinHalf, pinLeaving, inFree))
			} else if len(dst) == n {
				dst = append(dst, pairOf(pinHalf, absent, inFree))
			}
		}
	}
	return dst
}

// meetsRank is a rank's word at its leader.
func (m *Machine) meetsRank(p handoff.Member, msg handoff.PeerMessage, dst []Pair) []Pair {
	if _, ok := msg.(handoff.Join); ok {
		if m.rostered(p.Rank) {
			dst = m.meetsBreak(dst)
		}
		return append(dst, pairOf(launchHalf, m.launchState(), inJoin))
	}
	if m.lead.joins[p.Rank].from != p || !m.rostered(p.Rank) {
		return dst
	}
	switch msg := msg.(type) {
	case handoff.Pinned:
		return append(dst, m.sourcePair(m.lead.labels[msg.Label], inPinned))
	case handoff.Extended:
		return append(dst, m.sourcePair(msg.ID, inExtended))
	case handoff.RankHeld:
		return append(dst, pairOf(launchHalf, m.launchState(), inRankHeld))
	case handoff.RankApplied:
		dst = append(dst, pairOf(launchHalf, m.launchState(), inRankApplied))
		for _, i := range m.lead.imports {
			dst = append(dst, m.leaderPair(i, inApplied))
		}
	case handoff.RankAcked:
		return append(dst, pairOf(launchHalf, m.launchState(), inAcked))
	case handoff.RankReserved:
		in := inGranted
		if msg.Reserved.Full {
			in = inFull
		}
		return append(dst, m.leaderPair(m.importByReserve(msg.Reserved.N), in))
	case handoff.Landed:
		in := inFailed
		if msg.OK {
			in = inLanded
		}
		return append(dst, m.leaderPair(m.importByReserve(msg.N), in))
	}
	return dst
}

func (m *Machine) meetsPeerDown(p handoff.Member, dst []Pair) []Pair {
	if !m.up(p) {
		return dst
	}
	dst = m.eachDest(dst, inSourceDown, func(d *handoff.Dest) bool { return reads(d, p) })
	for _, i := range m.lead.imports {
		if i.Source == p {
			dst = append(dst, m.leaderPair(i, inSourceLost))
		}
	}
	if m.leads() && m.lead.joins[p.Rank].from == p {
		if m.rostered(p.Rank) {
			dst = m.meetsBreak(dst)
		}
		dst = append(dst, pairOf(launchHalf, m.launchState(), inMemberDown))
	}
	return dst
}

// meetsBreak is the end of the roster at what hangs on it.
func (m *Machine) meetsBreak(dst []Pair) []Pair {
	if m.lead.roster == nil {
		return dst
	}
	return m.meetsAll(dst, inSourceGroupBreaks, inGroupBreaks)
}

// meetsAll is what reaches everything that a leader has under way.
func (m *Machine) meetsAll(dst []Pair, source, leader input) []Pair {
	for _, id := range m.lead.labels {
		dst = append(dst, m.sourcePair(id, source))
	}
	for _, i := range m.lead.imports {
		dst = append(dst, m.leaderPair(i, leader))
	}
	return dst
}

func (m *Machine) meetsTick(now Now, dst []Pair) []Pair {
	for _, p := range m.pins {
		if p.Deadline <= now {
			dst = append(dst, m.pinPair(p.Info.Pin, inPinDeadline))
		}
	}
	for l, at := range m.kept {
		if at <= now && m.leaves(l) {
			dst = append(dst, pairOf(pinHalf, pinLeaving, inPinDeadline))
		}
	}
	for _, id := range m.lead.labels {
		if m.lead.sources[id].Deadline() <= now {
			dst = append(dst, m.sourcePair(id, inLeaseEnds))
		}
	}
	for _, i := range m.lead.imports {
		if at, ok := i.due(m.cfg.Patience); ok && at <= now {
			dst = append(dst, m.leaderPair(i, inDeadline))
		}
	}
	return dst
}

func (m *Machine) sourcePair(id handoff.ID, in input) Pair {
	if s := m.lead.sources[id]; s != nil {
		return pairOf(sourceHalf, int(s.State()), in)
	}
	return pairOf(sourceHalf, absent, in)
}

const pinLeaving = 3

func (m *Machine) pinState(id handoff.PinID) int {
	for p := range m.leaving {
		if p.ID == uint64(id) {
			return pinLeaving
		}
	}
	switch p := m.pins[id]; {
	case p == nil:
		return absent
	case p.ID == handoff.ID{}:
		return 1
	}
	return 2
}

func (m *Machine) pinPair(id handoff.PinID, in input) Pair {
	return pairOf(pinHalf, m.pinState(id), in)
}

func (m *Machine) eachPin(dst []Pair, in input) []Pair {
	for id := range m.pins {
		dst = append(dst, m.pinPair(id, in))
	}
	for range m.leaving {
		dst = append(dst, pairOf(pinHalf, pinLeaving, in))
	}
	return dst
}

// meetsPacks is who packs, at the pins that are packed from.
func (m *Machine) meetsPacks(e Event, dst []Pair) []Pair {
	switch e := e.(type) {
	case AskGrant:
		return append(dst, m.pinPair(e.Of.Pin, inAskGrant))
	case GrantEnded:
		p, _ := m.grants.Of(e.Grant) // none: its mover exited before
		return append(dst, m.pinPair(handoff.PinID(p.ID), inGrantEnded))
	case PackerExited:
		ps := m.grants.Pins(e.Packer)
		if len(ps) == 0 {
			return append(dst, m.pinPair(0, inPackerExited))
		}
		for _, p := range ps {
			dst = append(dst, m.pinPair(handoff.PinID(p.ID), inPackerExited))
		}
	}
	return dst
}

func (m *Machine) destPair(n uint64, in input) Pair {
	if d := m.dests[n]; d != nil {
		return pairOf(destHalf, int(d.State()), in)
	}
	return pairOf(destHalf, absent, in)
}

func (m *Machine) eachDest(dst []Pair, in input, match func(*handoff.Dest) bool) []Pair {
	for n, d := range m.dests {
		if match(d) {
			dst = append(dst, m.destPair(n, in))
		}
	}
	return dst
}

func reads(d *handoff.Dest, p handoff.Member) bool {
	return slices.ContainsFunc(d.Reads, func(r handoff.Read) bool { return r.From == p })
}

func (m *Machine) leaderPair(i *importing, in input) Pair {
	if i == nil {
		return pairOf(leaderHalf, absent, in)
	}
	return pairOf(leaderHalf, int(i.State()), in)
}

func (m *Machine) importOfLabel(im handoff.Import) *importing {
	label := im.Label
	if label == "" {
		label = im.Manifest.Label
	}
	for _, i := range m.lead.imports {
		if i.Import.Label == label {
			return i
		}
	}
	return nil
}

func (m *Machine) importOfID(id handoff.ID) *importing {
	for _, i := range m.lead.imports {
		if i.ID() == id {
			return i
		}
	}
	return nil
}

func (m *Machine) launchState() int {
	switch {
	case m.engine == nil || !m.engine.mapped:
		return 0
	case m.lead.roster != nil:
		return 2
	case m.lead.launch != nil:
		return 3
	}
	return 1
}

// meetsSums is what was added up, at the pin or the import that it is of.
func (m *Machine) meetsSums(e Summed, dst []Pair) []Pair {
	a, ok := m.adding[e.Ticket]
	switch {
	case !ok:
		return dst
	case a.dest == nil:
		return append(dst, m.pinPair(a.pin, inPinSummed))
	case m.dests[a.dest.D.N] != a.dest:
		return append(dst, pairOf(destHalf, absent, inSummed))
	}
	in := inSummed
	if n, _ := a.match.Compare(m.sources[a.dest.D.Source].geometry.Model, e.Sums); n > 0 || e.Err != nil {
		in = inDiffers
	}
	return append(dst, m.destPair(a.dest.D.N, in))
}
