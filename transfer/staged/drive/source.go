package drive

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/pack"
)

// want takes a reader's wish: what it says of the bytes is checked against this rank's own
// memory, and never trusted.
func (s *Stage) want(p transfer.PeerID, m staged.Want, x *Spec) {
	k, err := s.serving(p, m, x)
	if err != nil {
		s.cfg.Log.Warn("staged pull refused", "peer", p, "err", err)
		s.cfg.Owner.Refused(p, m, staged.Malformed)
		s.cfg.Owner.Send(p, staged.Gone{Job: m.Job, Why: staged.Transfer}, Extra{})
		return
	}
	s.yieldProbe(ErrProbe, anyPeer)
	s.wire(s.peers[p])
	s.wanted = k
	s.step(staged.FromPeer{Peer: p, Msg: m}, source)
	s.wanted = nil
}

func (s *Stage) serving(p transfer.PeerID, m staged.Want, x *Spec) (*serve, error) {
	if x == nil {
		return nil, fmt.Errorf("%w: nothing is said of the bytes", pack.ErrMoves)
	}
	chunk := x.Chunk
	if chunk == 0 {
		chunk = ChunkBytes
	}
	if chunk < MinChunk || chunk > s.cfg.Chunk {
		return nil, fmt.Errorf("%w: chunks of %d bytes are wanted, these have %d", pack.ErrMoves, chunk, s.cfg.Chunk)
	}
	c, err := s.cut(x.Moves, chunk)
	if err != nil {
		return nil, err
	}
	n, err := c.pack.Chunks(x.Tokens)
	if err == nil && n != m.Chunks {
		err = fmt.Errorf("%w: %d chunks are wanted of %d", pack.ErrMoves, m.Chunks, n)
	}
	if err == nil {
		_, err = c.out.Templates() // none for boxes that this rank does not hold
	}
	return &serve{cut: c, peer: p, job: m.Job, spec: x}, err
}

// cut is what both ends make of the moves of a pair: one for all its jobs.
type cut struct {
	bytes   int64 // of a chunk
	pack    *pack.Packing
	out, in *pack.Copies
}

// maxCuts bounds how many are kept; a rank has a few pairs with each group.
const maxCuts = 256

func (s *Stage) cut(moves []pack.Move, chunk int64) (*cut, error) {
	e := s.engine
	if e == nil {
		return nil, fmt.Errorf("%w: no engine is attached", transfer.ErrClosed)
	}
	key := binary.LittleEndian.AppendUint64(nil, uint64(chunk))
	for _, v := range moves {
		for _, n := range [...]int32{v.State, v.Box.Layers.Lo, v.Box.Layers.Hi, v.Box.Units.Lo, v.Box.Units.Hi, v.Rows, int32(v.DType)} {
			key = binary.LittleEndian.AppendUint32(key, uint32(n))
		}
	}
	if c := e.cuts[string(key)]; c != nil {
		return c, nil
	}
	k, err := pack.New(e.model, moves, staged.BodyRoom(chunk))
	if err != nil {
		return nil, err
	}
	if len(e.cuts) >= maxCuts {
		clear(e.cuts)
	}
	c := &cut{bytes: chunk, pack: k, out: k.Pack(e.shards, s.packArena()), in: k.Unpack(e.shards, s.unpackArena())}
	e.cuts[string(key)] = c
	return c, nil
}

// Granted says that a job may be packed, from these blocks and this slot of a pin, as far as
// the pin holds its tokens in its layers.
func (s *Stage) Granted(grant uint64, blocks []int32, slot int32, holds func(tokens, layers layout.Span) bool) {
	k := s.grants[grant]
	if k != nil && s.asksMore(k, slot, holds) {
		s.cfg.Log.Warn("staged pull of more than the pin holds", "peer", k.peer, "tokens", k.spec.Tokens)
		s.cfg.Owner.EndGrant(grant)
		s.Refused(grant)
		return
	}
	if k != nil {
		k.own = pack.Own{Tokens: k.spec.Tokens, Blocks: blocks, Slot: slot}
	}
	s.step(staged.Granted{Grant: grant}, source)
}

// asksMore reports whether a reader wants what a pin does not hold, or not yet.
func (s *Stage) asksMore(k *serve, slot int32, holds func(tokens, layers layout.Span) bool) bool {
	return s.engine != nil && slices.ContainsFunc(k.spec.Moves, func(v pack.Move) bool {
		if s.engine.model.States[v.State].Paging == layout.PerRequest {
			return slot < 0
		}
		return !holds(k.spec.Tokens, v.Box.Layers)
	})
}

// Refused says that it may not.
func (s *Stage) Refused(grant uint64) {
	delete(s.grants, grant)
	s.step(staged.Refused{Grant: grant}, source)
}

// Revoked says that a grant is over: the pin goes when its packs have ended.
func (s *Stage) Revoked(grant uint64) { s.step(staged.Revoked{Grant: grant}, source) }

// pack copies a chunk out of engine memory, between its stamps.
func (s *Stage) pack(f staged.Pack) {
	if err := s.packInto(f); err != nil {
		s.step(staged.PackDone{Ticket: f.Ticket, Why: reason(err)}, source)
	}
}

func (s *Stage) packInto(f staged.Pack) error {
	k := s.serves[f.Stamp.Job]
	if k == nil || s.engine == nil || s.engine.out == nil {
		return fmt.Errorf("%w: the engine's memory is not mapped", transfer.ErrClosed)
	}
	body, err := k.pack.Bytes(k.own.Tokens, f.Stamp.Seq)
	if err != nil {
		return err
	}
	tm, j, err := k.out.Copy(k.own, f.Stamp.Seq, f.Chunk)
	if err != nil {
		return err
	}
	chunk := s.arena.chunk(f.Chunk)
	if err := f.Stamp.WriteHead(chunk, body); err != nil {
		return err
	}
	return s.copy(s.engine.out, tm, j, s.packs, f.Ticket, func(err error) {
		if err == nil {
			err = f.Stamp.WriteTail(chunk, body)
		}
		s.step(staged.PackDone{Ticket: f.Ticket, Why: reason(err)}, source)
	})
}

// copy submits a copy of the local mover; done is told on the owner's goroutine.
func (s *Stage) copy(l transfer.Link, tm *lower.Template, j lower.Job, open map[uint64]transfer.Ticket, ticket uint64, done func(error)) error {
	t, err := l.Pull(s.ctx, tm, j)
	if err != nil {
		return err
	}
	open[ticket] = t
	s.work.Go(func() {
		<-t.Done()
		s.post(func() {
			delete(open, ticket)
			done(t.Err())
		})
	})
	return nil
}

// awaitAnswer kills an own wire mover that stands still: it has not answered before the
// timer that is returned is stopped.
func (s *Stage) awaitAnswer(m Mover) *time.Timer {
	return time.AfterFunc(s.cfg.Answer, func() { m.Kill(fmt.Errorf("it has not answered in %v", s.cfg.Answer)) })
}

// expose lets the peer fetch a packed chunk, and then tells it.
func (s *Stage) expose(p transfer.PeerID, m staged.Offer) {
	w := s.wires[s.cfg.Route(p)]
	k := s.serves[m.Job]
	if w == nil || w.mover == nil || w.id != m.Wire || k == nil {
		return // its exit, or the end of the job, is on the way
	}
	body, err := k.pack.Bytes(k.own.Tokens, m.Seq)
	n := int64(0)
	if err == nil {
		n, err = staged.ChunkBytes(k.bytes, body)
	}
	if err != nil { // it was packed by the same numbers
		w.mover.Kill(err)
		return
	}
	s.offers[m.Offer] = p
	silent := s.awaitAnswer(w.mover)
	w.mover.Expose(staged.Exposed{Offer: m.Offer, Chunk: m.Chunk, Bytes: n}, func(err error) {
		silent.Stop()
		s.post(func() {
			switch _, still := s.offers[m.Offer]; {
			case err != nil:
				w.mover.Kill(err)
			case still:
				s.cfg.Owner.Send(p, m, Extra{Port: w.port})
			}
		})
	})
}

// credited ends an offer of p at its wire mover.
func (s *Stage) credited(p transfer.PeerID, offer uint64) {
	if s.offers[offer] != p {
		return
	}
	delete(s.offers, offer)
	if w := s.wires[s.cfg.Route(p)]; w != nil && w.mover != nil {
		w.mover.Withdraw(offer)
	}
}

// engine is the memory of the engine that is attached.
type engine struct {
	model   layout.Model
	shards  []layout.Shard // of this rank
	regions func() (map[transfer.RegionID]transfer.Memory, error)
	cuts    map[string]*cut
	out, in transfer.Link // to pack, and to unpack; nil while the local mover maps neither
	giveUp  func()        // ends the tries to have them; nil before the first
}
