package drive

import (
	"fmt"
	"net"
	"strconv"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
)

// fetch brings a chunk from the peer's arena.
func (s *Stage) fetch(f staged.Fetch) {
	if err := s.fetchInto(f); err != nil {
		s.step(staged.FetchDone{Ticket: f.Ticket, Why: reason(s.pulls[f.Stamp.Job].failed(err))}, dest)
	}
}

func (s *Stage) fetchInto(f staged.Fetch) error {
	w, k := s.wires[s.cfg.Route(f.Peer)], s.pulls[f.Stamp.Job]
	at, host := s.at[f.Peer], s.cfg.Host(f.Peer)
	if w == nil || w.mover == nil || w.id != f.Wire || k == nil || at.wire != f.Of || host == "" {
		return fmt.Errorf("%w: no wire mover for %s, or nobody knows its address", transfer.ErrPeer, f.Peer)
	}
	body, err := k.pack.Bytes(k.own.Tokens, f.Stamp.Seq)
	if err != nil {
		return err
	}
	n, err := staged.ChunkBytes(k.bytes, body)
	if err != nil {
		return err
	}
	s.fetches[f.Ticket] = w.mover.Fetch(staged.Fetching{Addr: net.JoinHostPort(host, strconv.Itoa(int(at.port))), Of: f.Of,
		Offer: f.Stamp.Offer, Chunk: s.in(f.Chunk), Bytes: n}, func(err error) {
		s.post(func() {
			delete(s.fetches, f.Ticket)
			if err != nil {
				s.cfg.Log.Debug("fetch failed", "peer", f.Peer, "err", err)
				k.failed(err)
			}
			s.step(staged.FetchDone{Ticket: f.Ticket, Why: reason(err)}, dest)
		})
	})
	return nil
}

// unpack copies a chunk whose stamps are the right ones into engine memory.
func (s *Stage) unpack(f staged.Unpack) {
	if err := s.unpackFrom(f); err != nil {
		s.cfg.Log.Warn("a staged chunk was not unpacked", "chunk", f.Stamp.Seq, "err", err)
		s.step(staged.UnpackDone{Ticket: f.Ticket, Why: reason(s.pulls[f.Stamp.Job].failed(err))}, dest)
	}
}

func (s *Stage) unpackFrom(f staged.Unpack) error {
	k := s.pulls[f.Stamp.Job]
	if k == nil || s.engine == nil || s.engine.in == nil {
		return fmt.Errorf("%w: the engine's memory is not mapped", transfer.ErrClosed)
	}
	body, err := k.pack.Bytes(k.own.Tokens, f.Stamp.Seq)
	if err != nil {
		return err
	}
	if _, err := f.Stamp.Verify(s.arena.chunk(s.in(f.Chunk)), body); err != nil {
		return err
	}
	tm, j, err := k.in.Copy(k.own, f.Stamp.Seq, s.in(f.Chunk))
	if err != nil {
		return err
	}
	return s.copy(s.engine.in, tm, j, s.unpacks, f.Ticket, func(err error) {
		if err == nil {
			k.moved += body
		} else {
			k.failed(err)
		}
		s.step(staged.UnpackDone{Ticket: f.Ticket, Why: reason(err)}, dest)
	})
}
