// Package machine is one whole sidecar as a pure machine: an engine rank's
// attachment, its pins and imports, and on rank 0 the group's roster, sequence,
// leases and importing leader. Step takes one event and returns the effects to carry
// out in order; Next is the earliest deadline. No I/O, no clock, no goroutine, no
// lock: package loop drives it for real, a simulation drives many.
//
// The files follow the roles: engine.go and attach.go (the attached rank, and what it
// states), launch.go and recover.go (roster, the group's sequence, and what is left of a
// leader before), group.go (who may say what, and a rank under its leader), export.go,
// grant.go, lease.go and offer.go (source side: pins, packs, leases, answers to importers),
// importer.go, queue.go and outcome.go (importing leader: its way, and how it ends), parts.go
// (what leaves before it is whole, on either side), plan.go, pull.go, sums.go, stuck.go and fence.go (a
// rank's share of an import, and its memory), weights.go, action.go, await.go, drain.go and reset.go (what control planes ask of a whole group),
// peers.go (sessions and links), list.go (what a leader is asked). meets.go, meetings.go
// and load.go only look: they are for simulations and tests.
package machine

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/sums"
)

// Config is fixed for the life of a sidecar process.
type Config struct {
	Self handoff.Member
	// Role is what the group does: prefill exports, decode imports, both (or "") does both.
	Role discovery.Role
	// Verify is how much of an export is summed up, and whether imports are compared: Off
	// compares nothing, Sample what the source brings sums of, All refuses less than all.
	Verify sums.Mode
	// Mint returns random numbers: keys, ids, fd keys. It is part of the machine's input.
	Mint func() uint64

	Lease       time.Duration // how long a source is held after Export, and by each renewal
	Margin      time.Duration // how much later than the leader a rank frees by itself
	MaxHold     time.Duration // no renewal passes it, whatever Export asks
	Deadline    time.Duration // of an import that brings none
	Redial      time.Duration // pause after a dial of a peer that failed; doubled each time,
	RedialMax   time.Duration // up to this
	MaxImports  int           // waiting and running; one more is ErrCapacity
	MaxSources  int           // held labels; one more Export is refused. Also pins of one rank
	KillAfter   time.Duration // copies that were asked to stop and have not end with their mover
	Patience    time.Duration // for an answer to Done, and for Applied after Admit
	KeepSources time.Duration // how long an ended source keeps its answers
	KeepOver    int           // ended sources that keep them, whatever their age
	KeepDone    int           // finished imports that Get still knows
}

// Defaults fills what is zero.
func (c Config) Defaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Lease, 30*time.Second)
	def(&c.Margin, 5*time.Second)
	def(&c.MaxHold, 5*time.Minute)
	def(&c.Deadline, 30*time.Second)
	def(&c.Redial, 100*time.Millisecond)
	def(&c.RedialMax, 5*time.Second)
	def(&c.Patience, 10*time.Second)
	def(&c.KillAfter, 30*time.Second)
	def(&c.KeepSources, 2*time.Minute)
	for p, v := range map[*int]int{&c.MaxImports: 1024, &c.MaxSources: 4096, &c.KeepDone: 1024, &c.KeepOver: 16384} {
		if *p == 0 {
			*p = v
		}
	}
	return c
}

// Machine is one sidecar. Not safe for concurrent use.
type Machine struct {
	cfg Config
	now Now
	out []Effect

	engine *engine // nil: none attached
	// attaches counts them: a pin of before one is told from a pin of after it.
	attaches handoff.Generation
	unmap    Session // a gone engine's buffers, unmapped once quiet
	gone     Now     // when that engine went, or the mover was last asked to end for its sums
	records  map[place]discovery.Record
	peers    map[handoff.Member]*peer
	links    map[handoff.Member]*link

	// every rank
	member  *handoff.Roster // the roster that this rank belongs to
	joined  bool            // Join went to boss in its present session
	boss    handoff.Member  // the leader that this rank joined
	pins    map[handoff.PinID]*handoff.Pin
	pinEnds agenda[handoff.PinID]    // the rank's own deadline of each of pins
	grants  staged.Grants            // who packs from pins
	lent    uint64                   // grants that were given
	leaving map[staged.Pin]*leaving  // pins that are over, and are packed from
	kept    map[string]Now           // labels that the engine holds for no pin: of before it attached, or whose Free waits; with this rank's own deadline
	dests   map[uint64]*handoff.Dest // by Reserve number
	tickets map[uint64]ticket
	adding  map[uint64]adding // sums that are being made
	lastTkt uint64
	sources map[handoff.Digest]*sourceGroup // geometries that the leader passed on

	// rank 0
	lead leader
}

// New makes the machine of one sidecar.
func New(cfg Config) *Machine {
	m := &Machine{cfg: cfg.Defaults(), records: map[place]discovery.Record{}, peers: map[handoff.Member]*peer{},
		links: map[handoff.Member]*link{}, pins: map[handoff.PinID]*handoff.Pin{}, kept: map[string]Now{}, dests: map[uint64]*handoff.Dest{},
		leaving: map[staged.Pin]*leaving{}, tickets: map[uint64]ticket{}, adding: map[uint64]adding{}, sources: map[handoff.Digest]*sourceGroup{}}
	m.lead = newLeader()
	m.lead.attempts = handoff.Attempt(m.cfg.Self.Incarnation) << 32
	return m
}

// Step applies e at now, which never goes back.
func (m *Machine) Step(now Now, e Event) []Effect {
	m.now, m.out = now, nil
	switch e := e.(type) {
	case FromEngine:
		m.fromEngine(e.Session, e.Msg)
	case EngineDown:
		m.engineDown(e.Session)
	case Mapped:
		m.mapped(e)
	case PeerUp:
		m.peerUp(e.Peer)
	case PeerDown:
		m.peerDown(e.Peer)
	case FromPeer:
		m.fromPeer(e.Peer, e.Msg)
	case Found:
		m.found(e.Records)
	case Meet:
		m.meet(e.Peer)
	case Linked:
		m.linked(e)
	case LinksLost:
		m.linksLost()
	case PullDone:
		m.pullDone(e)
	case Summed:
		m.summed(e)
	case AskGrant:
		m.askGrant(e)
	case GrantEnded:
		m.grantEnded(e)
	case PackerExited:
		m.packerExited(e)
	case Import:
		m.importCall(e)
	case Abort:
		m.abortCall(e)
	case Release:
		m.releaseCall(e)
	case SetWeightsEpoch:
		m.weightsCall(e)
	case Reset:
		m.resetCall(e)
	case Lifecycle:
		m.lifecycleCall(e)
	case Drain:
		m.drainCall(e)
	case Tick:
	}
	m.expire()
	return m.out
}

// Next is the earliest instant at which a Tick does something; ok is false when none is.
func (m *Machine) Next() (at Now, ok bool) {
	earliest := func(t Now) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	if t, some := m.pinEnds.next(); some {
		earliest(t)
	}
	for l, at := range m.kept {
		if !m.leaves(l) { // else the end of its packs is what is waited for
			earliest(at)
		}
	}
	for _, p := range m.peers {
		if p.retry > 0 {
			earliest(p.retry)
		}
	}
	for _, l := range m.leaving {
		earliest(l.since + m.cfg.KillAfter)
	}
	if t, some := m.killAdderAt(); some {
		earliest(t)
	}
	for _, d := range m.dests {
		if t, stuck := m.killAt(d); stuck {
			earliest(t)
		}
	}
	m.lead.deadlines(m.cfg.Patience, earliest)
	return at, ok
}

// expire does what has come due.
func (m *Machine) expire() {
	m.expirePins()
	m.killStuck()
	m.retryPeers()
	if m.leads() {
		m.expireSources()
		m.renewLeases()
		m.expireImports()
		m.expireAwaited()
	}
}

func (m *Machine) do(e ...Effect) { m.out = append(m.out, e...) }

func (m *Machine) leads() bool { return m.cfg.Self.Rank == 0 }

// toLeader sends to this rank's leader: itself, or rank 0's sidecar that it joined.
func (m *Machine) toLeader(msg handoff.PeerMessage) {
	if m.leads() {
		m.do(ToPeer{m.cfg.Self, msg})
		return
	}
	if m.joined { // else Join and what follows Roster state it
		m.do(ToPeer{m.boss, msg})
	}
}

func (m *Machine) toEngine(msg handoff.ToEngine) {
	if m.engine != nil {
		m.do(ToEngine{m.engine.session, msg})
	}
}

func (m *Machine) refuse(from handoff.Member, msg handoff.PeerMessage, why Why) {
	m.do(Refuse{from, fmt.Sprintf("%T", msg)[len("handoff."):], why})
}

func (m *Machine) publish(k events.Kind, e events.Event) {
	e.Kind = k
	m.do(Publish{e})
}

// modelDigest is what both groups of a hand-off must share: name and states, not
// the weights epoch, which is compared apart.
func modelDigest(id handoff.ModelIdentity) handoff.Digest {
	b := make([]byte, 0, 256)
	b = append(strconv.AppendQuote(b, id.Name), '\n')
	for _, s := range id.Layout.States {
		b = strconv.AppendQuote(b, s.Name)
		for _, v := range [...]int64{int64(s.Paging), int64(s.Layers), int64(s.Units), int64(s.Elems)} {
			b = strconv.AppendInt(append(b, ' '), v, 10)
		}
		b = append(b, '\n')
	}
	return sha256.Sum256(b)
}
