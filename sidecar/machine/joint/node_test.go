package joint

import (
	"errors"
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/staged"
)

var errMade = errors.New("made to fail")

// node is one sidecar process with its mover and its engine.
type node struct {
	m       *machine.Machine
	self    handoff.Member
	i, g    int
	life    int // counts its processes from 0; odd: it is dead
	minted  uint64
	view    lives // as discovery showed it
	eng     engine
	fromEng []machine.Event
	tickets []tick
	dials   []handoff.Member
	opens   []handoff.Member
	lost    bool // the mover died: LinksLost was not told yet
	old     bool // another process has its place
	hung    bool // and it does nothing
	anew    bool // a new engine is to start here
	stage

	next machine.Now // of the machine, 0: none
	harm string      // what no node may be, "": it is not
}

func (n *node) dead() bool { return n.life&1 == 1 }

// acts: it takes what comes.
func (n *node) acts() bool { return !n.dead() && !n.hung }

// lives is what discovery shows: four bits a node, its life.
type lives uint64

const unseen lives = 1 << 63

func (l lives) of(i int) int { return int(l>>(4*i)) & 15 }

// tick is an open pull.
type tick struct {
	n        uint64
	src      int
	peer     handoff.Member
	from, to []int32 // blocks
	reserve  uint64
	canceled bool
	dead     bool       // its mover is
	job      staged.Job // of a staged pull
	lo       int        // the prompt's block that is read first
	whole    bool       // the last one is read
}

// runner does one act of one node.
type runner struct {
	*model
	*node
	now   machine.Now
	local []machine.Event
	outs  []out
	given claim // up, by the call to abort under way
}

func (r *runner) fail(format string, a ...any) {
	r.outs = append(r.outs, out{kind: breaks_, text: fmt.Sprintf(format, a...)})
}

func (r *runner) put(o out) { r.outs = append(r.outs, o) }

// event gives one event to the sidecar, with what it says to itself: the loop that
// drives it takes those before anything else.
func (r *runner) event(e machine.Event) {
	r.local = append(r.local, e)
	r.drain()
}

func (r *runner) drain() {
	var e machine.Event
	for len(r.local) > 0 {
		e, r.local = r.local[0], r.local[1:]
		r.minting = r.node
		r.hearsLease(e)
		for _, f := range r.node.m.Step(r.now, e) {
			r.carry(f)
		}
	}
}

// hearsLease notes that a rank of p that holds a pin hears of its lease.
func (r *runner) hearsLease(e machine.Event) {
	if x, ok := e.(machine.FromPeer); ok {
		if l, ok := x.Msg.(handoff.Leased); ok {
			if h := handOf(l.Label); r.eng.holds(h) && !r.eng.letGo[h] {
				r.put(out{kind: remarks, at: remark{what: wasTold, h: h, proof: proof{dst: r.node.i}}})
			}
		}
	}
}

func (r *runner) act(a act) {
	n := r.node
	switch a.kind {
	case arrives:
		r.arrive(&r.table.letters[a.a])
	case says:
		e := n.fromEng[0]
		n.fromEng = n.fromEng[1:]
		r.event(e)
	case settles:
		r.settle(a.a, a.b == 1, a.c)
	case ticks:
		r.event(machine.Tick{})
	case applies:
		r.applyThrough(a.c, a.a)
	case freed:
		n.say(handoff.Freed{Blocks: int32(a.a)})
	case reached, unreached:
		p := n.dials[a.a]
		n.dials = slices.Delete(n.dials, a.a, a.a+1)
		if a.kind == unreached {
			r.event(machine.PeerDown{Peer: p, Err: errMade})
		}
	case linkOpens:
		r.link(a.a, a.b == 1)
	case losesLinks:
		n.lost = false
		r.event(machine.LinksLost{})
	case looks:
		n.view = lives(a.c)
		r.event(machine.Found{Records: r.records(n.view)})
	case imports:
		im := handoff.Import{Manifest: r.table.mans[a.a], Tokens: make([]int32, r.set.tokens)}
		if r.set.apart {
			im.Tokens[0] = int32(handOf(im.Manifest.Label))
		}
		r.event(machine.Import{Call: importCall, Import: im})
	case isAborted:
		o, _ := n.m.Get(r.table.mans[a.a].ID)
		r.given = claim{o.ID, n.g, o.Attempt}
		r.event(machine.Abort{Call: abortCall, ID: o.ID})
	case isReleased:
		r.event(machine.Release{Call: otherCall, ID: r.table.mans[a.a].ID, Key: r.table.mans[a.a].Key})
	case forged:
		r.forge(r.table.letters[a.a], a.b)
	case newWeights:
		r.event(machine.SetWeightsEpoch{Call: otherCall, Epoch: 1})
	case packs, fetches, unpacks, wireExits:
		r.move(a)
		r.drain()
	default:
		r.fate(a)
	}
}

// fate is what happens to processes.
func (r *runner) fate(a act) {
	n := r.node
	switch a.kind {
	case moverDies:
		r.moverDies()
	case wireDies:
		n.wires[a.a].dying = true
	case engineDies:
		was := n.eng.linked
		n.eng.alive, n.eng.linked = false, false
		if !n.dead() && was {
			n.fromEng = append(n.fromEng, machine.EngineDown{Session: n.eng.session})
		}
	case dies:
		if n.life++; a.b == 1 {
			n.eng.misses()
		}
		n.dials, n.opens, n.fromEng, n.lost = nil, nil, nil, false
		n.eng.linked = false
		n.stage.ends()
	case restarts:
		n.life++
		n.self.Incarnation = r.members[n.i].Incarnation + handoff.Incarnation(lifeSpan*n.life)
		n.m, n.minted, n.view = machine.New(r.config(n.self)), 0, unseen
		n.stage.begins(r.model, n.g)
		r.event(machine.Found{Records: r.records(lives(a.c))})
		n.view = lives(a.c)
	case joins:
		r.join()
	case parts_:
		n.eng.linked = false
		n.fromEng = append(n.fromEng, machine.EngineDown{Session: n.eng.session})
	case exports:
		r.export(a.a)
	case announces:
		n.say(handoff.Announce{Label: labelOf(a.a)})
	case givesUp:
		n.say(handoff.ReleaseExport{Label: labelOf(a.a)})
	case forgets:
		clear(n.eng.taken)
		clear(n.eng.names)
		clear(n.eng.verdict)
		clear(n.eng.letGo)
	case finishes:
		r.finish()
	case grows:
		r.grow()
	case preempts_:
		r.preempt()
	case ages, renews, launches, inherits, loses:
		r.twinned(a)
	}
}

// Calls are counted, not told apart.
const (
	importCall machine.Call = 1
	otherCall  machine.Call = 2
	abortCall  machine.Call = 3
)

func (r *runner) carry(f machine.Effect) {
	n := r.node
	switch f := f.(type) {
	case machine.ToEngine:
		r.hear(f)
	case machine.CloseEngine:
		if errors.Is(f.Err, handoff.ErrEngine) {
			r.fail("%v blames an engine that did nothing wrong: %v", n.self, f.Err)
		}
		if f.Session == n.eng.session && n.eng.linked {
			r.closed(f.Err)
		}
	case machine.MapBuffers:
		r.local = append(r.local, machine.Mapped{Session: f.Session, PID: 1})
	case machine.UnmapBuffers:
		if len(n.tickets) > 0 && f.Session == n.eng.session {
			r.fail("%v unmaps memory that ticket %d writes", n.self, n.tickets[0].n)
		}
		if len(n.packs) > 0 {
			r.fail("%v unmaps memory that is packed from", n.self)
		}
	case machine.ToPeer:
		r.toPeer(f)
	case machine.Dial:
		n.dials = append(n.dials, f.Peer)
	case machine.ClosePeer:
		r.put(out{kind: parts, to: r.index(f.Peer)})
	case machine.ShareBuffers:
		r.toPeer(machine.ToPeer{Peer: f.Peer, Msg: handoff.Buffers{}})
	case machine.OpenLink:
		n.opens = append(n.opens, f.Peer)
	case machine.CloseLink:
		for _, t := range n.tickets {
			if t.peer == f.Peer && !t.dead {
				r.fail("%v closes the link to %v under ticket %d", n.self, f.Peer, t.n)
			}
		}
	case machine.Pull:
		r.pull(f)
	case machine.CancelPull:
		r.cancel(f.Ticket)
	case machine.KillMover:
		r.kill(f.Packer)
	case machine.Granted, machine.GrantRefused, machine.Revoked:
		r.granted(f)
	case machine.Reply:
		r.reply(f)
	case machine.Notify:
		r.notice(f.Notice)
	}
}

// closed: the sidecar ends its engine's session. Only memory that is not quiet yet may be
// a reason to come again; any other costs the launch, which no lost word and no sidecar
// that restarts may do.
func (r *runner) closed(why error) {
	switch {
	case len(r.node.tickets) > 0 && !r.eng.ready:
		r.node.eng.linked = false
	case r.set.faults&comeBack != 0 && r.set.faults&enginesDie == 0:
		r.fail("%v costs its group the launch: %v", r.node.self, why)
	}
	r.put(out{kind: endsEngine})
}

func (r *runner) reply(f machine.Reply) {
	switch {
	case f.Call == abortCall && f.Err == nil:
		r.put(out{kind: remarks, at: remark{what: wasAborted, proof: proof{claim: r.given}}})
	case f.Call != importCall:
	case f.Err != nil:
		r.put(out{kind: replies, to: 1})
	default:
		r.put(out{kind: replies})
	}
}

func (r *runner) notice(x machine.Notice) {
	switch x.Kind {
	case machine.NoticeAnnounced, machine.NoticeExported:
		r.put(out{kind: shows, to: handOf(x.Label), msg: r.enterMan(*x.Manifest)})
	}
}

func (r *runner) toPeer(f machine.ToPeer) {
	if f.Peer == r.node.self {
		r.local = append(r.local, machine.FromPeer{Peer: f.Peer, Msg: f.Msg})
		return
	}
	r.proves(f)
	r.put(out{kind: sends, to: r.index(f.Peer), msg: r.enterLetter(letter{from: r.node.self, to: f.Peer, msg: f.Msg})})
}

func (r *runner) pull(f machine.Pull) {
	n := r.node
	if n.eng.own == nil {
		r.fail("%v pulls for an engine that another process has", n.self)
		return
	}
	lo, hi := int(f.Piece.Tokens.Lo/blockTokens), int(f.Piece.Tokens.Hi/blockTokens)
	if hi > len(f.Job.SrcBlocks) {
		r.fail("%v pulls tokens %v, of which the source named %d blocks", n.self, f.Piece.Tokens, len(f.Job.SrcBlocks))
		return
	}
	for _, b := range f.Job.DstBlocks {
		if n.eng.own[b] == 0 || n.eng.own[b] >= exportBit {
			r.fail("%v pulls into block %d, which is nobody's", n.self, b)
			return
		}
	}
	t := tick{n: f.Ticket, src: r.index(f.Peer), peer: f.Peer, from: f.Job.SrcBlocks[lo:hi], to: f.Job.DstBlocks[lo:hi],
		lo: lo, whole: int32(hi) == r.set.tokens/blockTokens, reserve: n.eng.own[f.Job.DstBlocks[0]], dead: n.lost}
	if r.set.staged {
		t.dead, t.job = false, staged.Job{Handoff: f.Job.Handoff, Attempt: uint64(f.Of.Attempt), Pair: f.Job.Pair, Part: f.Part}
	}
	n.tickets = append(n.tickets, t)
	if r.set.staged {
		r.dest(staged.Pull{Peer: r.peerID(f.Peer), Job: t.job, Pin: staged.Pin{ID: uint64(f.Of.Pin), Generation: uint64(f.Of.Generation)}, Chunks: 1})
	}
}

// settle ends ticket k. Its bytes are what the source's memory holds at this instant:
// what was written over while it was read is wrong in any case.
func (r *runner) settle(k int, bad bool, bytes uint64) {
	n := r.node
	t := n.tickets[k]
	n.tickets = slices.Delete(n.tickets, k, k+1)
	rank := int(r.members[t.src].Rank)
	for j, b := range t.to {
		if n.eng.own == nil {
			break // its engine is with another process already, which the world looks into
		}
		n.eng.content[b][rank] = garbage
		if !bad {
			n.eng.content[b][rank] = uint8(bytes >> (8 * j))
		}
	}
	if n.dead() {
		return
	}
	var err error
	if bad {
		err = errMade
	} else if t.whole {
		r.put(out{kind: remarks, at: remark{what: wasRead, proof: proof{n.eng.taken[t.reserve], n.i % r.base, rank}}})
	}
	r.event(machine.PullDone{Ticket: t.n, Bytes: 1, Err: err})
}

// link ends the opening of link k.
func (r *runner) link(k int, bad bool) {
	n := r.node
	p := n.opens[k]
	n.opens = slices.Delete(n.opens, k, k+1)
	var err error
	if bad || n.lost { // a dead mover's links are no links
		err = errMade
	}
	r.event(machine.Linked{Peer: p, Err: err})
}
