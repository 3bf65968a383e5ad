package drive_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/drive"
)

// between stands between a reader and the source's wire mover, over plain TCP.
type between struct {
	hello  func(b []byte) []byte                          // what the reader hears; nil: the source's
	answer func(head, body []byte) (out []byte, cut bool) // to one request; nil: the source's
	ask    func() bool                                    // a request came; false: it is not answered

	mu   sync.Mutex // guards:
	real string     // address of the source's wire mover
	open []net.Conn
	done bool
}

const helloBytes, askBytes, headBytes = 8, 28, 16

// stand has the reader's fetches go through b.
func (b *between) stand(t *testing.T, p *pair) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.keep(c)
			all.Go(func() { b.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		b.mu.Lock()
		b.done = true
		for _, c := range b.open {
			c.Close()
		}
		b.mu.Unlock()
		all.Wait()
	})
	port := int32(l.Addr().(*net.TCPAddr).Port)
	p.src.sync(func() {
		p.src.lose = func(m staged.Message) bool {
			_, is := m.(staged.Offer)
			if is {
				b.mu.Lock()
				if b.real == "" {
					b.real = (<-p.src.pid).Addr() // it serves what is offered
				}
				b.mu.Unlock()
				p.dst.queue <- func() { p.dst.stage.FromPeer(p.src.id, m, drive.Extra{Port: port}) }
			}
			return is
		}
	})
}

func (b *between) keep(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		c.Close()
	}
	b.open = append(b.open, c)
}

func (b *between) serve(c net.Conn) {
	defer c.Close()
	b.mu.Lock()
	real := b.real
	b.mu.Unlock()
	s, err := net.Dial("tcp", real)
	if err != nil {
		return
	}
	defer s.Close()
	b.keep(s)
	// One head after the other: of the greetings, then of requests and their answers.
	pass := func(to io.Writer, from io.Reader, n int64) ([]byte, error) {
		m := make([]byte, n)
		if _, err := io.ReadFull(from, m); err != nil {
			return nil, err
		}
		if to == nil {
			return m, nil
		}
		_, err := to.Write(m)
		return m, err
	}
	if _, err := pass(s, c, helloBytes); err != nil {
		return
	}
	h, err := pass(nil, s, helloBytes)
	if err == nil && b.hello != nil {
		h = b.hello(h)
	}
	if _, err2 := c.Write(h); err != nil || err2 != nil {
		return
	}
	for {
		a, err := pass(nil, c, askBytes)
		if err != nil || b.ask != nil && !b.ask() {
			_, _ = io.Copy(io.Discard, c)
			return
		}
		if _, err := s.Write(a); err != nil {
			return
		}
		head, err := pass(nil, s, headBytes)
		if err != nil {
			return
		}
		body, err := pass(nil, s, int64(binary.BigEndian.Uint64(head[8:])))
		out, cut := append(head, body...), false
		if err == nil && b.answer != nil {
			out, cut = b.answer(head, body)
		}
		if _, err2 := c.Write(out); err != nil || err2 != nil || cut {
			return
		}
	}
}

// hostile is a way in which a source's wire mover may misbehave.
type hostile struct {
	by   *between
	want error
	says string
}

// reused has the stamp at a place of a chunk, from its end if negative, be another offer's.
func reused(at int) *between {
	return &between{answer: func(head, body []byte) ([]byte, bool) {
		at := at
		if at < 0 {
			at += len(body)
		}
		body[at+40]++
		return append(head, body...), false
	}}
}

func hostiles() map[string]hostile {
	return map[string]hostile{
		"another version":  {&between{hello: func(b []byte) []byte { b[5]++; return b }}, transfer.ErrPeer, "run one release on both hosts"},
		"TLS":              {&between{hello: func(b []byte) []byte { b[6] = 1; return b }}, transfer.ErrPeer, "set staging.transport alike"},
		"no greeting":      {&between{hello: func([]byte) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }}, transfer.ErrPeer, "bad frame"},
		"no answer's head": {&between{answer: func(head, body []byte) ([]byte, bool) { head[0]++; return append(head, body...), false }}, transfer.ErrPeer, "bad frame"},
		"another length": {&between{answer: func(head, body []byte) ([]byte, bool) {
			binary.BigEndian.PutUint64(head[8:], uint64(len(body))-64)
			return append(head, body[64:]...), false
		}}, transfer.ErrPeer, "bad frame"},
		"far too long": {&between{answer: func(head, body []byte) ([]byte, bool) {
			binary.BigEndian.PutUint64(head[8:], 1<<62)
			return append(head, body...), false
		}}, transfer.ErrPeer, "bad frame"},
		"no such status": {&between{answer: func(head, _ []byte) ([]byte, bool) {
			return append(head[:4], 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0, 0), false
		}}, transfer.ErrPeer, "bad frame"},
		"the offer is gone": {&between{answer: func(head, _ []byte) ([]byte, bool) {
			return append(head[:4], 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0), false
		}}, transfer.ErrPeer, "offers no such chunk"},
		"truncated":                      {&between{answer: func(head, body []byte) ([]byte, bool) { return append(head, body[:len(body)/2]...), true }}, transfer.ErrPeer, "EOF"},
		"truncated head":                 {&between{answer: func(head, _ []byte) ([]byte, bool) { return head[:7], true }}, transfer.ErrPeer, "EOF"},
		"a chunk reused before the read": {reused(0), staged.ErrStamp, "head of chunk"},
		"a chunk reused during the read": {reused(-staged.StampBytes), staged.ErrStamp, "tail of chunk"},
		"noise": {&between{answer: func(head, body []byte) ([]byte, bool) {
			clear(body)
			return append(head, body...), false
		}}, staged.ErrStamp, "head of chunk"},
	}
}

// TestHostileSources: whatever a source's wire mover sends, the pull ends with an error that
// names it, nothing reaches the engine's memory but chunks whose stamps are right, and every
// chunk comes back at both ends.
func TestHostileSources(t *testing.T) {
	for name, c := range hostiles() {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, 2)
			c.by.stand(t, p)
			p.pull(1)
			if r := p.wait(t); !errors.Is(r.err, c.want) || !strings.Contains(r.err.Error(), c.says) {
				t.Errorf("the pull ended: %v", r.err)
			}
			p.landedNothing(t)
			p.quiet(t)
			p.src.sync(func() { p.src.lose = nil })
			for n := uint64(2); ; n++ { // a wire mover that was killed has a successor soon
				p.pull(n)
				if p.wait(t).err == nil {
					break
				}
			}
			p.landed(t)
			p.quiet(t)
		})
	}
}

// TestCreditsAgain: credits that come twice, late and in another order free no chunk that is
// in use: what lands is what was sent.
func TestCreditsAgain(t *testing.T) {
	p := newPair(t, 2)
	var late []staged.Message
	p.dst.sync(func() {
		p.dst.lose = func(m staged.Message) bool {
			if _, is := m.(staged.Credit); !is {
				return false
			}
			late = append(late, m)
			to := append([]staged.Message{m}, late...) // the new one, and all before it once more
			for _, m := range to {
				p.src.queue <- func() { p.src.stage.FromPeer(p.dst.id, m, drive.Extra{}) }
			}
			return true
		}
	})
	for n := range uint64(6) {
		p.wipe()
		p.pull(n + 1)
		if r := p.wait(t); r.err != nil {
			t.Fatal(r.err)
		}
		p.landed(t)
	}
	p.quiet(t)
}

// TestQuarantineIsOne: of fetches that were cancelled and do not end, one chunk waits and a
// second costs the wire mover, which ends both; later pulls go well.
func TestQuarantineIsOne(t *testing.T) {
	p := newPair(t, 8)
	asked := make(chan struct{}, 64)
	by := &between{ask: func() bool { asked <- struct{}{}; return false }}
	by.stand(t, p)
	p.pull(1)
	for range 2 {
		<-asked
	}
	m := <-p.dst.pid
	p.dst.sync(func() { p.dst.stage.Cancel(p.job(1)) })
	if r := p.wait(t); !errors.Is(r.err, transfer.ErrCanceled) {
		t.Errorf("the pull ended: %v", r.err)
	}
	most := int32(0)
	for over := false; !over; {
		select {
		case <-m.Exited():
			over = true
		default:
		}
		p.dst.sync(func() {
			_, use := p.dst.stage.Use()
			most = max(most, use.Quarantined)
		})
	}
	if most > 1 {
		t.Errorf("%d chunks of one peer were quarantined at once", most)
	}
	p.src.sync(func() { p.src.lose = nil })
	for n := uint64(2); ; n++ {
		p.pull(n)
		if p.wait(t).err == nil {
			break
		}
	}
	p.landed(t)
	p.quiet(t)
}
