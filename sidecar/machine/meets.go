package machine

import (
	"fmt"

	"github.com/batonkv/baton/sidecar/handoff"
)

// Pair is one state of one half of the protocol and one input that reaches it there. A
// simulation counts them, to say what it has tried. Pairs count from 0 to NumPairs.
type Pair uint16

// half is a part of a sidecar that has a state.
type half uint8

const (
	sourceHalf half = iota
	pinHalf
	destHalf
	leaderHalf
	launchHalf
	numHalves
)

// input is what reaches a half. Each half has its own, from 0.
type input uint8

const ( // of a source
	inAnnounce input = iota
	inExport
	inPinned
	inOpen
	inDone
	inWithdraw
	inRelease
	inLeaseEnds
	inSourceGroupBreaks
	inExtended
	inSourceWeights
	inSourceReset
	inExportPart
	sourceInputs
)

const ( // of a pin
	inLeased input = iota
	inUnpin
	inFree
	inCheck
	inPinDeadline
	inPinEngineDown
	inExtend
	inPinFenced
	inAskGrant
	inGrantEnded
	inPackerExited
	inPinSummed
	pinInputs
)

const ( // of a destination rank
	inReserve input = iota
	inAdmit
	inDrop
	inReleaseQuarantine
	inReserved
	inReservedFull
	inCopied
	inCopyFailed
	inHeld
	inGone
	inLinked
	inLinkFailed
	inSourceDown
	inLinksLost
	inEngineDown
	inFenced
	inPart
	inSummed
	inDiffers
	destInputs
)

const ( // of an importing leader
	inImport input = iota
	inAbort
	inOpenedOK
	inOpenedPending
	inOpenedNo
	inGranted
	inFull
	inLanded
	inFailed
	inDoneOK
	inDoneNo
	inApplied
	inSourceLost
	inDeadline
	inGroupBreaks
	inWeights
	inReset
	inParts
	leaderInputs
)

const ( // of a launch
	inMapped input = iota
	inJoin
	inMemberDown
	inRankHeld
	inRankApplied
	inOwnEngineDown
	inLifecycle
	inDrain
	inAcked
	launchInputs
)

// absent is the state of what is not there, or not any more; the others are those of
// handoff, or of launchStates and pinStates.
const absent = 0

const (
	sourceStates = int(handoff.Over) + 1
	pinStates    = 4
	destStates   = int(handoff.Ended)
	leaderStates = int(handoff.Finished)
	launchStates = 4

	sourcePairs = sourceStates * int(sourceInputs)
	pinPairs    = pinStates * int(pinInputs)
	destPairs   = destStates * int(destInputs)
	leaderPairs = leaderStates * int(leaderInputs)
	launchPairs = launchStates * int(launchInputs)
	// NumPairs is how many pairs there are.
	NumPairs = sourcePairs + pinPairs + destPairs + leaderPairs + launchPairs
)

var halves = [numHalves]struct {
	name   string
	first  int
	states []string
	inputs []string
}{
	{"source", 0, []string{"absent", "announced", "leasing", "over"},
		[]string{"Announce", "Export", "Pinned", "Open", "Done", "Withdraw", "Release", "lease-ends", "group-breaks", "Extended", "SetWeightsEpoch", "Reset", "ExportPart"}},
	{"pin", sourcePairs, []string{"absent", "waiting", "leased", "leaving"},
		[]string{"Leased", "Unpin", "Free", "Check", "deadline", "engine-down", "Extend", "Fenced", "AskGrant", "GrantEnded", "packer-exited", "Summed"}},
	{"dest", sourcePairs + pinPairs, []string{"absent", "reserving", "linking", "moving", "good", "bad", "quarantine"},
		[]string{"Reserve", "Admit", "Drop", "ReleaseQuarantine", "Reserved", "full", "copied", "copy-failed", "held", "gone", "linked", "link-failed",
			"source-down", "links-lost", "engine-down", "Fenced", "Part", "Summed", "differs"}},
	{"leader", sourcePairs + pinPairs + destPairs, []string{"absent", "finding", "opening", "waiting", "granting", "pulling", "consuming", "admitting", "draining"},
		[]string{"Import", "Abort", "opened", "pending", "not-opened", "granted", "full", "landed", "failed", "done", "not-done", "Applied", "source-lost",
			"deadline", "group-breaks", "SetWeightsEpoch", "Reset", "Part"}},
	{"launch", sourcePairs + pinPairs + destPairs + leaderPairs, []string{"none", "gathering", "standing", "broken"},
		[]string{"mapped", "Join", "member-down", "Held", "Applied", "engine-down", "Lifecycle", "Drain", "Acked"}},
}

// String is "half state input".
func (p Pair) String() string {
	for _, h := range halves {
		if n := int(p) - h.first; n < len(h.states)*len(h.inputs) {
			return fmt.Sprintf("%s %s %s", h.name, h.states[n/len(h.inputs)], h.inputs[n%len(h.inputs)])
		}
	}
	return fmt.Sprintf("Pair(%d)", uint16(p))
}

func pairOf(h half, state int, in input) Pair {
	return Pair(halves[h].first + state*len(halves[h].inputs) + int(in))
}

// Meets appends the pairs that e would make at now: which halves it reaches, in which
// states. It changes nothing. What Step refuses unseen meets nothing.
func (m *Machine) Meets(now Now, e Event, dst []Pair) []Pair {
	switch e := e.(type) {
	case FromEngine:
		if m.engine == nil || m.engine.session != e.Session || !m.engine.mapped {
			return dst
		}
		return m.meetsEngine(e.Msg, dst)
	case EngineDown:
		if m.engine == nil || m.engine.session != e.Session {
			return dst
		}
		dst = m.eachPin(dst, inPinEngineDown)
		dst = m.eachDest(dst, inEngineDown, func(*handoff.Dest) bool { return true })
		if m.leads() {
			dst = append(m.meetsBreak(dst), pairOf(launchHalf, m.launchState(), inOwnEngineDown))
		}
	case Mapped:
		if m.leads() && e.Err == nil && m.engine != nil && m.engine.session == e.Session && !m.engine.mapped {
			dst = append(dst, pairOf(launchHalf, m.launchState(), inMapped))
		}
	case PeerDown:
		return m.meetsPeerDown(e.Peer, dst)
	case FromPeer:
		return m.meetsPeer(e.Peer, e.Msg, dst)
	case Linked:
		in := inLinked
		if e.Err != nil {
			in = inLinkFailed
		}
		return m.eachDest(dst, in, func(d *handoff.Dest) bool { return reads(d, e.Peer) })
	case LinksLost:
		return m.eachDest(dst, inLinksLost, func(*handoff.Dest) bool { return true })
	case PullDone:
		in := inCopied
		if e.Err != nil {
			in = inCopyFailed
		}
		if t, ok := m.tickets[e.Ticket]; ok {
			dst = append(dst, m.destPair(t.reserve, in))
		}
	case Summed:
		return m.meetsSums(e, dst)
	case Tick:
		return m.meetsTick(now, dst)
	default:
		return m.meetsPacks(e, m.meetsCall(e, dst))
	}
	return dst
}

// meetsCall is what control planes ask.
func (m *Machine) meetsCall(e Event, dst []Pair) []Pair {
	switch e := e.(type) {
	case Import:
		dst = append(dst, m.leaderPair(m.importOfLabel(e.Import), inImport))
	case Abort:
		dst = append(dst, m.leaderPair(m.importOfID(e.ID), inAbort))
	case Release:
		dst = append(dst, m.sourcePair(e.ID, inRelease))
	case SetWeightsEpoch:
		if m.leads() && m.lead.roster != nil && e.Epoch > m.epoch() {
			return m.meetsAll(dst, inSourceWeights, inWeights)
		}
	case Reset:
		return m.meetsAll(dst, inSourceReset, inReset)
	case Lifecycle:
		if m.leads() {
			dst = append(dst, pairOf(launchHalf, m.launchState(), inLifecycle))
		}
	case Drain:
		if m.leads() {
			dst = append(dst, pairOf(launchHalf, m.launchState(), inDrain))
		}
	}
	return dst
}
