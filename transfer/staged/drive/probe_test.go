package drive_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/drive"
)

// fetcher does a Fetch of odd, over the wire's own; land is where the bytes go.
type fetcher func(w staged.Wire, f staged.Fetching, land []byte, done func(error)) (cancel func())

// odd is a wire that fetches in another way.
type odd struct {
	staged.Wire
	arena []byte
	chunk int64
	fetch fetcher
}

func (o odd) Fetch(f staged.Fetching, done func(error)) func() {
	at := int64(f.Chunk) * o.chunk
	return o.fetch(o.Wire, f, o.arena[at:at+f.Bytes], done)
}

type probed struct {
	m   choice.Measured
	err error
}

// probe measures the link of the pair's reader.
func (p *pair) probe() chan probed {
	end := make(chan probed, 1)
	p.dst.sync(func() {
		p.dst.stage.Probe(p.src.id, func(m choice.Measured, err error) { end <- probed{m, err} })
	})
	return end
}

// probeAgain probes until no wire mover that ends is in the way.
func (p *pair) probeAgain(t *testing.T) choice.Measured {
	t.Helper()
	for {
		switch r := <-p.probe(); {
		case r.err == nil:
			return r.m
		case !errors.Is(r.err, transfer.ErrMover) && !errors.Is(r.err, transfer.ErrPeer), t.Context().Err() != nil:
			t.Fatal(r.err)
		}
	}
}

// TestProbe: a probe tells a rate and a latency, in any state of the wire movers, and leaves
// the arenas as they were.
func TestProbe(t *testing.T) { overEach(t, probes) }

func probes(t *testing.T, over string) {
	p := newPair(t, 2).over(t, over)
	for round := range 3 {
		if m := p.probeAgain(t); m.Rate <= 0 || m.Latency <= 0 {
			t.Fatalf("round %d: %+v", round, m)
		}
		p.quiet(t)
		p.wipe()
		p.pull(uint64(round) + 1)
		if r := p.wait(t); r.err != nil {
			t.Fatal(r.err)
		}
		p.landed(t)
		p.quiet(t)
		if round == 1 {
			p.src.kill(t)
			p.dst.kill(t)
		}
	}
	both := []chan probed{p.probe(), p.probe()} // one after the other
	for _, end := range both {
		if r := <-end; r.err != nil {
			t.Error(r.err)
		}
	}
}

// TestProbeSlow: a wire that takes its time is measured by a chunk, and by how long it takes.
func TestProbeSlow(t *testing.T) {
	p := newPair(t, 2)
	var chunks atomic.Int32
	p.dst.fetch = func(w staged.Wire, f staged.Fetching, _ []byte, done func(error)) func() {
		if f.Bytes < drive.ChunkBytes {
			return w.Fetch(f, done)
		}
		chunks.Add(1)
		return w.Fetch(f, func(err error) { time.AfterFunc(300*time.Millisecond, func() { done(err) }) })
	}
	if r := <-p.probe(); r.err != nil || r.m.Rate > drive.ChunkBytes/0.3 || chunks.Load() != 1 {
		t.Errorf("%+v, %v, %d chunks: want at most a chunk in 300 ms, and one", r.m, r.err, chunks.Load())
	}
}

// TestProbeLies: bytes that are not the peer's are found, also where nothing was written.
func TestProbeLies(t *testing.T) {
	for name, lie := range map[string]fetcher{
		"other bytes": func(w staged.Wire, f staged.Fetching, land []byte, done func(error)) func() {
			return w.Fetch(f, func(err error) {
				land[len(land)-1] ^= 1
				done(err)
			})
		},
		"no bytes": func(_ staged.Wire, _ staged.Fetching, _ []byte, done func(error)) func() {
			done(nil)
			return func() {}
		},
	} {
		p := newPair(t, 2)
		p.dst.fetch = lie
		if r := <-p.probe(); !errors.Is(r.err, transfer.ErrPeer) || !strings.Contains(r.err.Error(), "other bytes") {
			t.Errorf("%s: %+v, %v", name, r.m, r.err)
		}
	}
}

// TestProbeGivesWay: jobs are never behind a probe, at either end.
func TestProbeGivesWay(t *testing.T) {
	p := newPair(t, 2)
	gate, waits := make(chan struct{}), make(chan struct{}, 64)
	p.dst.fetch = func(w staged.Wire, f staged.Fetching, land []byte, done func(error)) func() {
		if f.Offer < 1<<63 {
			return w.Fetch(f, done)
		}
		waits <- struct{}{}
		go func() { <-gate; w.Fetch(f, done) }()
		return func() {}
	}
	end := p.probe()
	<-waits
	p.pull(1) // while a fetch of the probe is under way
	if r := p.wait(t); r.err != nil {
		t.Fatal(r.err)
	}
	close(gate)
	if r := <-end; !errors.Is(r.err, drive.ErrProbe) {
		t.Errorf("a probe with a job beside it: %+v, %v", r.m, r.err)
	}
	p.landed(t)
	p.quiet(t)

	p.src.held = func(uint64) bool { return true }
	p.src.sync(func() { p.src.lose = func(m staged.Message) bool { _, is := m.(staged.Offer); return is } })
	p.wipe()
	p.pull(2) // stays open: its offers are lost
	if r := <-p.probe(); !errors.Is(r.err, drive.ErrProbe) {
		t.Errorf("a probe behind a job: %+v, %v", r.m, r.err)
	}
	p.dst.sync(func() { p.dst.stage.Cancel(p.job(2)) })
	if r := p.wait(t); r.err == nil {
		t.Error("a canceled pull succeeded")
	}
	p.src.leaves(p.dst.id) // no credit comes for what was lost
	p.src.meets(p.dst)
	p.quiet(t)
	p.probeAgain(t)
}

// TestProbeEnds: a probe whose peer goes ends, and one whose fetch hangs ends with its
// session and the wire mover.
func TestProbeEnds(t *testing.T) {
	p := newPair(t, 2)
	hangs := make(chan struct{}, 64)
	p.dst.fetch = func(staged.Wire, staged.Fetching, []byte, func(error)) func() {
		hangs <- struct{}{}
		return func() {}
	}
	end := p.probe()
	<-hangs
	p.dst.leaves(p.src.id)
	if r := <-end; r.err == nil {
		t.Errorf("%+v", r.m)
	}
	if r := <-p.probe(); !errors.Is(r.err, transfer.ErrPeer) {
		t.Errorf("a probe without a session: %v", r.err)
	}
}

// TestProbeHangsBesideJobs: a probe whose fetch hangs ends with the wire mover once the job
// beside it, which lasts longer than any patience, is over.
func TestProbeHangsBesideJobs(t *testing.T) {
	p := newPair(t, 2)
	hangs := make(chan struct{}, 64)
	p.dst.fetch = func(w staged.Wire, f staged.Fetching, _ []byte, done func(error)) func() {
		if f.Offer < 1<<63 {
			return w.Fetch(f, done)
		}
		hangs <- struct{}{}
		return func() {}
	}
	p.src.held = func(uint64) bool { return true }
	p.src.sync(func() { p.src.lose = func(m staged.Message) bool { _, is := m.(staged.Offer); return is } })
	end := p.probe()
	<-hangs
	p.pull(1)
	time.AfterFunc(200*time.Millisecond, func() { p.dst.sync(func() { p.dst.stage.Cancel(p.job(1)) }) })
	if r := <-end; !errors.Is(r.err, drive.ErrProbe) {
		t.Errorf("%+v, %v", r.m, r.err)
	}
	if r := p.wait(t); r.err == nil {
		t.Error("a canceled pull succeeded")
	}
	p.src.leaves(p.dst.id) // no credit comes for what was lost
	p.src.meets(p.dst)
	p.quiet(t)
}
