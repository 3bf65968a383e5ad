package staged

import "slices"

// Who gets a free chunk. Peers take turns, so that one that wants much does not keep
// out one that wants little; a peer at its PerPeer waits for its own chunks alone.

// fill packs while chunks are free, peers in turn, each peer's jobs in order.
func (s *Source) fill() {
	for {
		i := slices.IndexFunc(s.chunks, func(c sourceChunk) bool { return c.state == srcFree })
		if i < 0 {
			return
		}
		p, j := s.ready()
		if j == nil {
			return
		}
		s.last++
		s.chunks[i] = sourceChunk{state: srcPacking, peer: p, job: j.job, seq: j.next, grant: j.grant, offer: s.last}
		s.emit(Pack{Ticket: s.last, Chunk: int32(i), Stamp: Stamp{Job: j.job, Seq: j.next, Offer: s.last}})
		p.held++
		j.next++
	}
}

// ready finds whose turn it is, and moves the turn on.
func (s *Source) ready() (*sourcePeer, *sourceJob) {
	for k := range s.peers {
		at := (s.turn + k) % len(s.peers)
		p := s.peers[at]
		if !p.up || p.wire == 0 || p.killing || p.held >= s.cfg.PerPeer {
			continue
		}
		for _, j := range p.jobs {
			if j.leave == grantOpen && j.next < j.total && j.settled.fits(j.next) {
				s.turn = (at + 1) % len(s.peers)
				return p, j
			}
		}
	}
	return nil, nil
}

// fill fetches while chunks are free, peers in turn, each peer's offers in order.
func (d *Dest) fill() {
	for {
		i := slices.IndexFunc(d.chunks, func(c destChunk) bool { return c.state == dstFree })
		if i < 0 {
			return
		}
		p := d.ready()
		if p == nil {
			return
		}
		m := p.offers[0]
		p.offers = slices.Delete(p.offers, 0, 1)
		d.last++
		d.chunks[i] = destChunk{state: dstFetching, peer: p, job: m.Job, seq: m.Seq, offer: m.Offer, ticket: d.last, wire: p.wire}
		d.emit(Fetch{p.id, d.last, Stamp{m.Job, m.Seq, m.Offer}, m.Chunk, m.Wire, int32(i), p.wire})
		p.held++
	}
}

// ready finds whose turn it is, and moves the turn on.
func (d *Dest) ready() *destPeer {
	for k := range d.peers {
		at := (d.turn + k) % len(d.peers)
		p := d.peers[at]
		if len(p.offers) > 0 && p.wire != 0 && !p.killing && p.held < d.cfg.PerPeer {
			d.turn = (at + 1) % len(d.peers)
			return p
		}
	}
	return nil
}
