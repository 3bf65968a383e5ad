package plane

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// worker answers one request by hand.
func worker(t *testing.T, ack string, home func(c net.Conn)) Target {
	ln := listenTest(t)
	done := make(chan struct{})
	t.Cleanup(func() { ln.Close(); <-done })
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		f, err := wire.ReadFrame(c, func(int64) bool { return true })
		if err != nil {
			return
		}
		if _, err := c.Write(wire.AppendAck(nil, ack)); err != nil || home == nil {
			return
		}
		_, h, _, err := wire.DecodeControl(f.Control)
		if err != nil {
			t.Error(err)
			return
		}
		back, err := net.Dial("tcp", h.Address)
		if err != nil {
			return
		}
		defer back.Close()
		shake, err := wire.JSON.Encode(wire.Handshake{Subject: h.Subject, StreamType: wire.Response})
		if err != nil {
			t.Error(err)
		}
		_, _ = back.Write(wire.AppendTwoPart(nil, wire.TwoPart{Header: shake}))
		home(back)
	}()
	return Target{ln.Addr().String(), "e", wire.JSON}
}

func write(c net.Conn, headers ...string) {
	for _, h := range headers {
		_, _ = c.Write(wire.AppendTwoPart(nil, wire.TwoPart{Header: []byte(h)}))
	}
}

func body(c net.Conn, text string) {
	_, _ = c.Write(wire.AppendTwoPart(nil, wire.TwoPart{Body: []byte(text)}))
}

const prologue = `{"error":null}`

// TestWorkersThatFail: whatever a worker does, a call ends with what it means.
func TestWorkersThatFail(t *testing.T) {
	c, ctx := client(t), ctxOf(t)
	for _, k := range []struct {
		name string
		to   Target
		want error
	}{
		{"overloaded", worker(t, Overloaded+"full", nil), handoff.ErrCapacity},
		{"unavailable", worker(t, Unavailable+"draining", nil), handoff.ErrPeer},
		{"no prologue", worker(t, "", func(net.Conn) {}), handoff.ErrPeer},
		{"garbage for a prologue", worker(t, "", func(c net.Conn) { write(c, "{") }), wire.ErrMalformed},
		{"end without a last item", worker(t, "", func(c net.Conn) { write(c, prologue); body(c, `{"data":{"data":{"n":0}},"complete_final":false}`) }), handoff.ErrPeer},
		{"sentinel without a last item", worker(t, "", func(c net.Conn) { write(c, prologue, wire.Sentinel) }), wire.ErrMalformed},
		{"garbage for an item", worker(t, "", func(c net.Conn) { write(c, prologue); body(c, `[`) }), wire.ErrMalformed},
		{"no sentinel", worker(t, "some other text", func(c net.Conn) { write(c, prologue); body(c, `{"complete_final":true}`) }), nil},
		{"nobody", Target{"127.0.0.1:1", "e", wire.JSON}, handoff.ErrPeer},
	} {
		if _, err := all(ctx, c, k.to, ask{}); !errors.Is(err, k.want) {
			t.Errorf("%s: %v, want %v", k.name, err, k.want)
		}
	}
	for name, home := range map[string]func(net.Conn){
		"prologue": func(c net.Conn) { write(c, `{"error":"boom"}`) },
		"comment": func(c net.Conn) {
			write(c, prologue)
			body(c, `{"data":{"data":null,"event":"error","comment":["boom"]},"complete_final":false}`)
		},
	} {
		_, err := all(ctx, c, worker(t, "", home), ask{})
		if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Message != "boom" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStoppedWorkerMayJustEnd: as Dynamo's do.
func TestStoppedWorkerMayJustEnd(t *testing.T) {
	c, ctx := client(t), ctxOf(t)
	a, err := c.Call(ctx, worker(t, "", func(c net.Conn) {
		write(c, prologue)
		_, _ = wire.ReadTwoPart(c)
	}), ask{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := a.Next(ctx, &reply{}); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestCallerDoesNotWaitLonger: a context ends each wait of a call.
func TestCallerDoesNotWaitLonger(t *testing.T) {
	c := client(t)
	hold := make(chan struct{})
	silent := func(then func(net.Conn)) Target {
		return worker(t, "", func(c net.Conn) { then(c); <-hold })
	}
	defer close(hold)
	for name, to := range map[string]Target{"before the prologue": silent(func(net.Conn) {}), "before an item": silent(func(c net.Conn) { write(c, prologue) })} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := all(ctx, c, to, ask{})
			done <- err
		}()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// gated is a connection with one whole message, whose context ends while that is read, and
// whose deadline then takes as long to set as the test wants.
type gated struct {
	net.Conn
	message   io.Reader
	end       context.CancelFunc
	cut, gate chan struct{}
}

func (g *gated) SetReadDeadline(at time.Time) error {
	if at.Before(time.Now()) {
		close(g.cut)
		<-g.gate
	}
	return nil
}

func (g *gated) Read(b []byte) (int, error) {
	g.end()
	<-g.cut
	return g.message.Read(b)
}

// TestEndOfOneReadDoesNotCutTheNext: a message that has come whole is given though the context
// has ended, and only when what that began has ended too.
func TestEndOfOneReadDoesNotCutTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		g := &gated{message: bytes.NewReader(wire.AppendTwoPart(nil, wire.TwoPart{Body: []byte("x")})), end: end, cut: make(chan struct{}), gate: make(chan struct{})}
		a := &Answer{conn: g, r: bufio.NewReader(g), codec: wire.JSON}
		done := make(chan error, 1)
		go func() {
			m, err := a.read(ctx, time.Minute)
			if string(m.Body) != "x" {
				err = fmt.Errorf("%q: %w", m.Body, err)
			}
			done <- err
		}()
		synctest.Wait()
		select {
		case <-done:
			t.Error("a read ends while its deadline is being set")
		default:
		}
		close(g.gate)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestHalfAMessageIsTheLast: what follows it cannot be told from its rest.
func TestHalfAMessageIsTheLast(t *testing.T) {
	half := wire.AppendTwoPart(nil, wire.TwoPart{Body: []byte(`{"complete_final":true}`)})[:30]
	a := &Answer{conn: &stuck{}, r: bufio.NewReader(bytes.NewReader(half)), codec: wire.JSON}
	for range 2 {
		if err := a.Next(t.Context(), &reply{}); !errors.Is(err, handoff.ErrPeer) || errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}
}

// TestStrangersAtTheDoor: connections that show no subject of a call end.
func TestStrangersAtTheDoor(t *testing.T) {
	c := client(t)
	for _, text := range []string{`{"subject":"x","stream_type":"response"}`, `{}`, `[`} {
		s := dialTest(t, c.home.String())
		write(s, text)
		if n, err := s.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// crowded is a listener of a process that is out of descriptors for a while.
type crowded struct {
	net.Listener
	fails atomic.Int32
}

func (l *crowded) Accept() (net.Conn, error) {
	if l.fails.Add(-1) >= 0 {
		return nil, errors.New("too many open files")
	}
	return l.Listener.Accept()
}

// TestClientOutlivesFailedAccepts: a client that could not take a connection takes the next.
func TestClientOutlivesFailedAccepts(t *testing.T) {
	l := &crowded{Listener: listenTest(t)}
	l.fails.Store(2)
	c := newClient(l)
	t.Cleanup(func() { c.Close() })
	a, err := c.Call(ctxOf(t), worker(t, "", func(back net.Conn) { write(back, prologue) }), "x")
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
}
