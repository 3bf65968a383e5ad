package mover

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/batonkv/baton/kernels/rows"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/transfertest"
)

// told is a settler that closes.
type told chan struct{}

func (c told) settle(int64, error) { close(c) }

// deaf is a life that nobody reads but who looks, and the child's end.
func deaf(t *testing.T) (*life, *net.UnixConn) {
	ours, theirs := conns(t)
	l := &life{conn: ours, reader: newFrameReader(ours), tickets: map[uint64]settler{}, calls: map[uint64]*call{}}
	l.reader.nowait = true
	var err error
	l.raw, err = ours.SyscallConn()
	must(t, err)
	return l, theirs
}

const long = time.Minute // no look of a test ends by itself

// Whoever looks handles answers until its own is there, and those that came with it.
func TestLook(t *testing.T) {
	l, child := deaf(t)
	mine, other, last := make(told), make(told), make(told)
	l.tickets[1], l.tickets[2], l.tickets[3] = mine, other, last
	l.look(mine, long)
	_, err := writeFrame(child, nil, &frame{kind: kindAnswer, id: 2, body: answer{}.append(nil)})
	must(t, err)
	<-other
	one, two := frame{kind: kindAnswer, id: 1, body: answer{}.append(nil)}, frame{kind: kindAnswer, id: 3, body: answer{}.append(nil)}
	must(t, writeAll(child, two.append(one.append(nil, 0), 0), nil))
	<-mine
	l.lookers.Wait()
	<-last
	if l.broken != nil || len(l.tickets) != 0 {
		t.Errorf("%v, %d tickets are open", l.broken, len(l.tickets))
	}
}

// A look ends with what it looks for, with its time and with the stream, and one is enough.
func TestLookEnds(t *testing.T) {
	l, child := deaf(t)
	done := make(chan struct{})
	l.look(done, long)
	close(done)
	l.lookers.Wait()
	l.look(nil, 0)
	l.lookers.Wait()

	l.looking.Lock()
	l.look(nil, long) // another looks
	l.lookers.Wait()
	l.looking.Unlock()

	l.look(nil, long)
	child.Close()
	l.lookers.Wait()
	if _, err := l.next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end of the stream: %v", err)
	}
}

// What a look cannot read ends the stream for who sleeps.
func TestLookBroken(t *testing.T) {
	l, child := deaf(t)
	read := make(chan error, 1)
	l.mu.Lock()
	l.rmu.Lock() // keeps who sleeps from being first
	go func() { read <- l.read() }()
	l.rmu.Unlock()
	l.look(nil, long)
	l.mu.Unlock()
	_, err := writeFrame(child, nil, &frame{kind: kindPull})
	must(t, err)
	if err := <-read; !errors.Is(err, errWire) {
		t.Errorf("read: %v", err)
	}
	child.Close() // who looks has not seen it when who sleeps came first
	l.lookers.Wait()
}

// A reader that looks before it sleeps reads the same.
func TestSpin(t *testing.T) {
	a, b := conns(t)
	r := newFrameReader(b)
	defer r.close()
	for _, spin := range []time.Duration{0, 1, long} {
		r.spin = spin
		wrote := make(chan error, 1)
		go func() {
			_, err := writeFrame(a, nil, &frame{kind: kindPull, id: uint64(spin)})
			wrote <- err
		}()
		if f, err := r.next(); err != nil || f.id != uint64(spin) {
			t.Errorf("spin %v: frame %d, %v", spin, f.id, err)
		}
		must(t, <-wrote)
	}
	go a.Close()
	if _, err := r.next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

// While the goroutine that read a long pull copies it, another reads.
func TestReadingHandedOn(t *testing.T) {
	c, err := rows.New(rows.Config{})
	must(t, err)
	begun, let := make(chan struct{}, 1), make(chan struct{})
	cfg := Config{Workers: 1}
	cfg.Command = []string{"in process"}
	m := newMover(cfg)
	m.spawn = func() (*life, error) {
		return spawnLocal(func(conn *net.UnixConn, stop <-chan struct{}) error {
			return serve(conn, host{copier: hooked{c, func() { begun <- struct{}{}; <-let }}, inline: 1 << 30}, true, stop, nil)
		}, m.cfg)
	}
	_, err = m.start()
	must(t, err)
	p := transfertest.NewPair(t, transfertest.Memfd, m)
	first := p.Pull(t, layout.Span{Hi: 200})
	<-begun
	second := p.Pull(t, layout.Span{Hi: 16}) // to the worker, which holds as well
	<-begun
	if _, err := m.Register(t.Context(), 77, transfertest.Memfd(t, 4096).Memory()); err != nil {
		t.Errorf("a request beside two copies: %v", err)
	}
	close(let)
	for _, k := range []transfer.Ticket{first, second} {
		if <-k.Done(); k.Err() != nil || k.Bytes() == 0 {
			t.Errorf("%v, %d bytes", k.Err(), k.Bytes())
		}
	}
	must(t, m.Close(t.Context()))
}
