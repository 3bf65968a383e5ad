package nixl

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged/internal/offers"
)

const (
	maxBusy  = 64  // reads at once
	maxAsked = 256 // requests that wait for their answers
	// maxAgain is more than a session has in hand: asked, answered, being read, and one in the
	// hands of each who passes them on. Who reads does not wait for who asks, who waits for who
	// listens, who waits for who reads.
	maxAgain = maxAsked + 2*maxBusy + 4
	// draining is how long reads of a peer that is gone may end by themselves, which is kinder
	// to it than the end of the agent: over TCP that can take the peer's process along.
	draining = 5 * time.Second
	// A wait for reads lasts so long, in microseconds, and longer while none ends.
	shortWait, longWait = 200, 5000
)

// read is one read as shim.h has it.
type read struct {
	bytes         int64
	req           uint64
	local, remote int32
	status        int32
	posted        int32
}

// session is a side connection and the agent that reads beside it. Three goroutines serve it:
// one asks, one listens, and the peer's own reads.
type session struct {
	p      *peer
	conn   net.Conn
	forget func() bool // the Wire's end does not concern the connection any more
	agent  *agent
	reach  welcome // of the peer

	asked  chan question // requests in order, each before it is written
	ready  chan *fetch   // answered: to be read
	again  chan *fetch   // read: to be asked about again
	broken chan struct{}
	once   sync.Once
	why    error // valid once broken is closed
}

// question is a request: whether the offer is open, before or after the read.
type question struct {
	f    *fetch
	read bool
}

func newSession(p *peer, c net.Conn, a *agent, reach welcome, forget func() bool) *session {
	return &session{p: p, conn: c, forget: forget, agent: a, reach: reach, asked: make(chan question, maxAsked), ready: make(chan *fetch, maxBusy),
		again: make(chan *fetch, maxAgain), broken: make(chan struct{})}
}

// run fetches first and what waits, until the session breaks. All that it took is settled then,
// and its agent is gone.
func (s *session) run(first *fetch) error {
	var work sync.WaitGroup
	work.Go(func() { s.ask(question{f: first}) })
	work.Go(func() { s.end(s.listen()) })
	over := s.read()
	work.Wait()
	s.forget()
	for {
		select {
		case q := <-s.asked:
			over = append(over, q.f)
		case f := <-s.ready:
			over = append(over, f)
		case f := <-s.again:
			over = append(over, f)
		default:
			for _, f := range over {
				s.p.settle(f, s.why)
			}
			return s.why
		}
	}
}

// end breaks the session.
func (s *session) end(why error) {
	s.once.Do(func() {
		s.why = s.p.failed(why)
		close(s.broken)
		s.conn.Close()
	})
}

// ask writes requests: q, and what follows.
func (s *session) ask(q question) {
	out := bufio.NewWriterSize(s.conn, 4<<10)
	var b [askBytes]byte
	for more := true; more; {
		if !s.note(q, out) {
			s.p.settle(q.f, s.why)
			return
		}
		_, _ = out.Write(ask{q.f.Offer, q.f.Bytes}.append(b[:0])) // Flush says the same
		var next question
		if next, more = s.next(false); !more {
			if err := out.Flush(); err != nil {
				s.end(err)
				return
			}
			next, more = s.next(true)
		}
		q = next
	}
}

// note keeps a request for its answer. What waits for an answer has been sent before this waits.
func (s *session) note(q question, out *bufio.Writer) bool {
	select {
	case s.asked <- q:
		return true
	default:
	}
	_ = out.Flush() // the next one says the same
	select {
	case s.asked <- q:
		return true
	case <-s.broken:
		return false
	}
}

// next is the next request, which it may wait for; false: there is none, or the session has
// broken. Nobody else takes from either queue. What was read goes first, so that the session
// has no more in hand than again has room for.
func (s *session) next(wait bool) (question, bool) {
	for wait || len(s.again)+len(s.p.waiting) > 0 {
		select {
		case f := <-s.again:
			return question{f, true}, true
		default:
		}
		select {
		case f := <-s.again:
			return question{f, true}, true
		case f := <-s.p.waiting:
			if f.state.Load() == idle {
				return question{f: f}, true
			}
		case <-s.broken:
			return question{}, false
		}
	}
	return question{}, false
}

// listen takes answers until one cannot be read.
func (s *session) listen() error {
	r := bufio.NewReaderSize(s.conn, 4<<10)
	var b [answerBytes]byte
	for {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return err
		}
		chunk, why, err := decodeAnswer(&b, s.reach.chunks)
		if err != nil {
			return err
		}
		var q question
		select {
		case q = <-s.asked:
		default:
			return fmt.Errorf("%w: an answer to no request", ErrFrame)
		}
		switch {
		case why != offers.Good:
			s.p.settle(q.f, why.Refusal())
		case q.f.Bytes > s.reach.chunk:
			err := s.p.failed(fmt.Errorf("%w: an offer of %d bytes in chunks of %d", ErrFrame, q.f.Bytes, s.reach.chunk))
			s.p.settle(q.f, err)
			return err
		case q.read && chunk != q.f.from:
			s.p.settle(q.f, fmt.Errorf("%w: the offer moved while it was read", transfer.ErrPeer))
		case q.read:
			s.p.settle(q.f, nil)
		default:
			q.f.from = chunk
			select {
			case s.ready <- q.f:
			case <-s.broken:
				s.p.settle(q.f, s.why)
				return s.why
			}
		}
	}
}

// batch is what is being read.
type batch struct {
	fs      []*fetch
	rs      []read
	started int
}

// read reads what is ready until the session breaks. It returns the fetches whose reads do
// not count, all of which have ended.
func (s *session) read() (over []*fetch) {
	var b batch
	wait := int32(shortWait)
	for s.take(&b) {
		if b.started < len(b.rs) {
			b.started += s.agent.start(b.rs[b.started:])
			wait = 0 // for those that a post has brought, and on to the rest
		}
		s.agent.wait(b.rs[:b.started], wait)
		wait = min(max(2*wait, shortWait), longWait)
		if b.sweep(func(f *fetch, r read) {
			if !s.ended(f, r) {
				over = append(over, f)
			}
		}) {
			wait = shortWait
		}
	}
	for until := time.Now().Add(draining); b.started > 0 && time.Now().Before(until); {
		s.agent.wait(b.rs[:b.started], longWait)
		b.sweep(func(f *fetch, _ read) { over = append(over, f) })
	}
	s.agent.end(b.rs) // the barrier
	return append(over, b.fs...)
}

// take adds what is ready to b, and waits when b is empty; false: the session has broken.
// Nobody else takes from ready.
func (s *session) take(b *batch) bool {
	for len(b.fs) == 0 || len(b.fs) < maxBusy && len(s.ready) > 0 {
		select {
		case f := <-s.ready:
			if f.begin() {
				b.fs = append(b.fs, f)
				b.rs = append(b.rs, read{bytes: f.Bytes, local: f.Chunk, remote: f.from})
			}
		case <-s.broken:
			return false
		}
	}
	select {
	case <-s.broken:
		return false
	default:
		return true
	}
}

// ended passes on a read that has ended; false: it does not count, and the fetch is over once
// the agent is gone.
func (s *session) ended(f *fetch, r read) bool {
	switch {
	case r.status == done && !f.rest():
		return true
	case r.status == done:
		s.again <- f
		return true
	case r.posted == 0:
		s.p.settle(f, s.p.failed(fmt.Errorf("%w: a read of %d bytes was refused (%d)", ErrCall, r.bytes, r.status)))
		return true
	}
	s.end(fmt.Errorf("%w: a read failed (%d)", ErrCall, r.status))
	return false
}

// sweep takes out what has ended.
func (b *batch) sweep(f func(*fetch, read)) (any bool) {
	kept, started := 0, 0
	for i, r := range b.rs {
		if i < b.started && r.status != busy {
			f(b.fs[i], r)
			any = true
			continue
		}
		if i < b.started {
			started++
		}
		b.fs[kept], b.rs[kept] = b.fs[i], r
		kept++
	}
	clear(b.fs[kept:])
	b.fs, b.rs, b.started = b.fs[:kept], b.rs[:kept], started
	return any
}
