package loop

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/sidecar/metrics"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/direct"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/drive"
	"github.com/batonkv/baton/transfer/staged/pack"
)

// Staging is how a sidecar reads from ranks whose memory it cannot map.
type Staging struct {
	Chunks int32 // of each half of the arena
	Chunk  int64 // bytes of one
	Depth  int32 // chunks that one peer may hold
	// Start starts the wire mover of a route, whose transport both ends offer.
	Start func(ctx context.Context, r drive.Route, id staged.Incarnation, arena transfer.Memory) (drive.Mover, error)
	// Baseline measures what this host does by itself; nil: links are compared with nothing.
	Baseline func(context.Context) choice.Baseline
	// Period is the pause between two probes of links that stand; 0: only new ones are probed.
	Period time.Duration
}

// staging is the sidecar's stage, and what the loop knows of its peers and jobs. It is of
// the machine's goroutine.
type staging struct {
	s      *Sidecar
	cfg    Staging
	stage  *drive.Stage
	ids    map[transfer.PeerID]handoff.Member // that have a session
	links  map[handoff.Member]int64           // read by staging: the size of their chunks
	pulls  map[staged.Job]stagedTicket
	places map[handoff.Incarnation]string // hosts by discovery
	asking handoff.Check                  // of the StagedWant in hand
	up     map[drive.Route]bool           // wire movers
	soonOn bool                           // soon was called, and has not begun
}

// arenaRegion is the arena's number among the local mover's regions: an engine's buffers
// are counted from 0.
const arenaRegion = direct.MaxRegions - 1

// Stage gives the sidecar its staging. Before Run.
func (s *Sidecar) Stage(ctx context.Context, c Staging) error {
	g := &staging{s: s, cfg: c, ids: map[transfer.PeerID]handoff.Member{}, links: map[handoff.Member]int64{}, pulls: map[staged.Job]stagedTicket{},
		places: map[handoff.Incarnation]string{}, up: map[drive.Route]bool{}}
	var err error
	g.stage, err = drive.New(ctx, drive.Config{Chunks: c.Chunks, Chunk: c.Chunk, PerPeer: c.Depth, Local: s.cfg.Backend, Region: arenaRegion, Mint: Random, Post: s.post,
		Owner: g, Log: s.log, Start: c.Start,
		Route: func(p transfer.PeerID) drive.Route { return g.route(g.ids[p]) },
		Host:  func(p transfer.PeerID) string { return g.places[g.ids[p].Incarnation] }})
	if err != nil {
		return err
	}
	s.staging = g
	return nil
}

func peerID(p handoff.Member) transfer.PeerID { return transfer.PeerID(p.String()) }

// found notes where discovery says that sidecars are: nobody else's word is dialled.
func (g *staging) found(rs []discovery.Record) {
	if g == nil {
		return
	}
	clear(g.places)
	for _, r := range rs {
		if host, _, err := net.SplitHostPort(r.Addr); err == nil {
			g.places[handoff.Incarnation(r.Incarnation)] = host
		}
	}
}

// route is by which transport a peer's chunks come; none: the two have none in common.
func (g *staging) route(p handoff.Member) drive.Route {
	pr := g.s.pairs[p]
	if pr == nil {
		return drive.Route{}
	}
	return drive.Route{Group: p.Group, Transport: pr.wire.Transport}
}

// reaches reports whether chunks can come from a peer that has a session, and go to it.
func (g *staging) reaches(p handoff.Member) bool { return g != nil && g.route(p).Transport != "" }

func (g *staging) peerUp(p handoff.Member) {
	if g.reaches(p) {
		g.ids[peerID(p)] = p
		g.stage.PeerUp(peerID(p))
	}
}

func (g *staging) peerDown(p handoff.Member) {
	if g != nil {
		g.stage.PeerDown(peerID(p))
		delete(g.ids, peerID(p))
	}
}

// engine says whose memory is packed and unpacked.
func (g *staging) engine(a handoff.Attach, b *buffers) {
	if g == nil {
		return
	}
	g.stage.Engine(a.Model.Layout, a.Shards, func() (map[transfer.RegionID]transfer.Memory, error) {
		out := map[transfer.RegionID]transfer.Memory{}
		for _, d := range b.decls {
			m, err := b.memory(d)
			if err != nil {
				direct.CloseAll(out)
				return nil, err
			}
			out[transfer.RegionID(d.ID)] = m
		}
		return out, nil
	})
}

// moverRestarted: the packs of the one that died have ended, and the links to the arena. Whose
// memory is staged is chosen anew with each link.
func (g *staging) moverRestarted() {
	if g != nil {
		clear(g.links)
		g.s.step(machine.PackerExited{})
		g.stage.Relink()
	}
}

// chunk is the size of this sidecar's chunks.
func (g *staging) chunk() int64 {
	if g == nil {
		return 0
	}
	return g.cfg.Chunk
}

// pull submits a job to the stage; false: its bytes do not come by staging.
func (g *staging) pull(f machine.Pull) bool {
	if g == nil {
		return false
	}
	chunk, is := g.links[f.Peer]
	if !is {
		return false
	}
	j := staged.Job{Handoff: f.Job.Handoff, Attempt: uint64(f.Of.Attempt), Pair: f.Job.Pair, Part: f.Part}
	moves := pack.Of(f.Plan, f.Job.Pair)
	if !f.Piece.Whole {
		moves = pack.Paged(f.Plan.Model(), moves, f.Piece.Layers)
	}
	t := stagedTicket{g, j, f.Ticket, g.route(f.Peer).Transport}
	g.pulls[j] = t
	g.asking = f.Of
	g.s.tickets[f.Ticket] = t
	g.stage.Pull(peerID(f.Peer), j, pinOf(f.Of), moves, pack.Own{Tokens: f.Job.Tokens, Blocks: f.Job.DstBlocks, Slot: f.Job.DstSlot}, chunk)
	return true
}

func pinOf(c handoff.Check) staged.Pin {
	return staged.Pin{ID: uint64(c.Pin), Generation: uint64(c.Generation)}
}

// stagedTicket is one staged pull as the loop counts it; its end is Done of the stage.
type stagedTicket struct {
	g         *staging
	j         staged.Job
	ticket    uint64 // the machine's
	transport string
}

func (t stagedTicket) Done() <-chan struct{} { return nil }
func (t stagedTicket) Err() error            { return nil }
func (t stagedTicket) Bytes() int64          { return 0 }
func (t stagedTicket) Cancel()               { t.g.stage.Cancel(t.j) }

// Done implements drive.Owner.
func (g *staging) Done(j staged.Job, bytes int64, err error) {
	t, open := g.pulls[j]
	if !open {
		return
	}
	delete(g.pulls, j)
	delete(g.s.tickets, t.ticket)
	g.soon()
	g.s.cfg.Metrics.Moved(t.transport, bytes)
	g.s.local = append(g.s.local, machine.PullDone{Ticket: t.ticket, Bytes: bytes, Err: err})
}

// AskGrant implements drive.Owner: it is the answer to the StagedWant in hand.
func (g *staging) AskGrant(grant uint64, p transfer.PeerID, _ staged.Job, _ staged.Pin) {
	g.s.local = append(g.s.local, machine.AskGrant{Grant: grant, Peer: g.ids[p], Of: g.asking})
}

// answer hands the machine's word on a grant to the stage.
func (g *staging) answer(f machine.Effect) {
	switch f := f.(type) {
	case machine.Granted:
		g.stage.Granted(f.Grant, f.Pin.Blocks, f.Pin.Slot, f.Reach.Covers)
	case machine.GrantRefused:
		g.stage.Refused(f.Grant)
	case machine.Revoked:
		g.stage.Revoked(f.Grant)
	}
}

// EndGrant implements drive.Owner.
func (g *staging) EndGrant(grant uint64) {
	g.s.local = append(g.s.local, machine.GrantEnded{Grant: grant})
}

// Refused implements drive.Owner.
func (g *staging) Refused(p transfer.PeerID, m staged.Message, why staged.Refusal) {
	g.s.cfg.Metrics.Dropped(map[staged.Refusal]metrics.Reason{staged.Unmatched: metrics.Unmatched, staged.Repeated: metrics.Stale,
		staged.Malformed: metrics.Malformed, staged.TooMany: metrics.Full}[why])
	g.s.log.LogAttrs(context.Background(), slog.LevelDebug, "staging message refused", slog.Any("from", p), slog.Any("type", fmt.Sprintf("%T", m)))
}

// Send implements drive.Owner.
func (g *staging) Send(p transfer.PeerID, m staged.Message, x drive.Extra) {
	to, up := g.ids[p]
	if !up {
		return
	}
	var msg handoff.PeerMessage
	switch m := m.(type) {
	case staged.Want:
		w := handoff.StagedWant{Of: g.asking, Pair: m.Job.Pair, Part: m.Job.Part, Chunks: m.Chunks, Chunk: x.Spec.Chunk, Tokens: x.Spec.Tokens}
		for _, v := range x.Spec.Moves {
			w.Moves = append(w.Moves, handoff.StagedMove{State: v.State, Box: v.Box, Rows: v.Rows, DType: v.DType})
		}
		msg = w
	case staged.Offer:
		msg = handoff.StagedOffer{Job: toJob(m.Job), Seq: m.Seq, Offer: m.Offer, Chunk: m.Chunk, Wire: uint64(m.Wire), Port: x.Port}
	case staged.Credit:
		msg = handoff.StagedCredit{Offer: m.Offer}
	case staged.Stop:
		msg = handoff.StagedStop{Job: toJob(m.Job)}
	case staged.Gone:
		msg = handoff.StagedGone{Job: toJob(m.Job), Why: uint8(m.Why)}
	}
	g.s.toPeer(machine.ToPeer{Peer: to, Msg: msg})
}

func toJob(j staged.Job) handoff.StagedJob {
	return handoff.StagedJob{Handoff: j.Handoff, Attempt: handoff.Attempt(j.Attempt), Pair: j.Pair, Part: j.Part}
}

func fromJob(j handoff.StagedJob) staged.Job {
	return staged.Job{Handoff: j.Handoff, Attempt: uint64(j.Attempt), Pair: j.Pair, Part: j.Part}
}

// hears takes what is said of staging; false: msg is for the machine.
func (g *staging) hears(s *Sidecar, p handoff.Member, msg handoff.PeerMessage) bool {
	switch msg.(type) {
	case handoff.StagedWant, handoff.StagedOffer, handoff.StagedCredit, handoff.StagedStop, handoff.StagedGone, handoff.ProbeAsk, handoff.ProbeAt:
	default:
		return false
	}
	if !g.reaches(p) {
		s.carry(machine.Refuse{Peer: p, What: strings.TrimPrefix(fmt.Sprintf("%T", msg), "handoff."), Why: machine.Unmatched})
		if w, want := msg.(handoff.StagedWant); want { // the reader waits for its end
			j := handoff.StagedJob{Handoff: w.Of.ID.Bytes(), Attempt: w.Of.Attempt, Pair: w.Pair, Part: w.Part}
			s.toPeer(machine.ToPeer{Peer: p, Msg: handoff.StagedGone{Job: j, Why: uint8(staged.Transfer)}})
		}
		return true
	}
	id := peerID(p)
	switch m := msg.(type) {
	case handoff.StagedWant:
		x := &drive.Spec{Chunk: m.Chunk, Tokens: m.Tokens}
		for _, v := range m.Moves {
			x.Moves = append(x.Moves, pack.Move{State: v.State, Box: v.Box, Rows: v.Rows, DType: v.DType})
		}
		g.asking = m.Of
		j := staged.Job{Handoff: m.Of.ID.Bytes(), Attempt: uint64(m.Of.Attempt), Pair: m.Pair, Part: m.Part}
		g.stage.FromPeer(id, staged.Want{Job: j, Pin: pinOf(m.Of), Chunks: m.Chunks}, drive.Extra{Spec: x})
	case handoff.StagedOffer:
		g.stage.FromPeer(id, staged.Offer{Job: fromJob(m.Job), Seq: m.Seq, Offer: m.Offer, Chunk: m.Chunk, Wire: staged.Incarnation(m.Wire)},
			drive.Extra{Port: m.Port})
	case handoff.StagedCredit:
		g.stage.FromPeer(id, staged.Credit{Offer: m.Offer}, drive.Extra{})
	case handoff.StagedStop:
		g.stage.FromPeer(id, staged.Stop{Job: fromJob(m.Job)}, drive.Extra{})
	case handoff.ProbeAsk:
		g.stage.AskedPlace(id, m.N, m.Bytes)
	case handoff.ProbeAt:
		g.place(p, m)
	case handoff.StagedGone:
		g.stage.FromPeer(id, staged.Gone{Job: fromJob(m.Job), Why: staged.Reason(m.Why)}, drive.Extra{})
	}
	return true
}
