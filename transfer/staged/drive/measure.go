package drive

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/staged"
)

// What one probe reads, at most.
const (
	smallBytes = 64 // of a read that latency is measured by
	smallReads = 5  // after the one that connects
	probeDepth = 4  // chunks under way at once
	probeBytes = 16 << 20
	maxChunks  = 64
	probeTime  = 200 * time.Millisecond // after that no chunk is asked for
)

// offerOf is the offer of so many bytes to probes: a number that a Source does not reach.
func offerOf(bytes int64) uint64 { return 1<<63 | uint64(bytes) }

// measure is the fetches of a probe. Its run returns when all of them have ended.
type measure struct {
	ctx   context.Context // its end: no further fetch, and those that can be are canceled
	mover Mover
	from  staged.Fetching
	bytes int64 // of a chunk
	first int32 // the arena's number of the first landing place
	land  [probeDepth][]byte
	want  []byte
}

// landed is the end of a fetch.
type landed struct {
	slot int
	at   time.Time
	err  error
}

func (m *measure) run() (choice.Measured, error) {
	var found choice.Measured
	for i := range 1 + smallReads {
		took, err := m.one(smallBytes)
		if err != nil {
			return choice.Measured{}, err
		}
		if i == 1 || i > 1 && took < found.Latency {
			found.Latency = took
		}
	}
	took, err := m.one(m.bytes)
	if err != nil {
		return choice.Measured{}, err
	}
	found.Rate = m.rate(1, took)
	if took > probeTime {
		return found, nil // more of them would take long, and say the same
	}
	many, err := m.many()
	switch {
	case err != nil && m.ctx.Err() == nil:
		return choice.Measured{}, err
	case many > 0:
		found.Rate = many
	}
	return found, nil
}

// one fetches and waits.
func (m *measure) one(n int64) (time.Duration, error) {
	ends := make(chan landed, 1)
	began := time.Now()
	cancel := m.fetch(0, n, ends)
	select {
	case e := <-ends:
		return e.at.Sub(began), e.err
	case <-m.ctx.Done():
		cancel()
		<-ends
		return 0, context.Cause(m.ctx)
	}
}

// many fetches chunks, probeDepth at once, and returns their rate; 0: too few came to say.
func (m *measure) many() (float64, error) {
	ends := make(chan landed, probeDepth)
	var cancels [probeDepth]func()
	began := time.Now()
	last, come, sent, open := began, 0, 0, 0
	most := int(min(probeBytes/m.bytes, maxChunks))
	for i := range probeDepth {
		cancels[i] = m.fetch(i, m.bytes, ends)
		sent, open = sent+1, open+1
	}
	var failed error
	stopped := m.ctx.Done()
	for open > 0 {
		select {
		case e := <-ends:
			open--
			if e.err != nil {
				failed = e.err
				continue
			}
			come, last = come+1, e.at
			if failed == nil && m.ctx.Err() == nil && sent < most && time.Since(began) < probeTime {
				cancels[e.slot] = m.fetch(e.slot, m.bytes, ends)
				sent, open = sent+1, open+1
			}
		case <-stopped:
			stopped = nil
			for _, c := range cancels {
				c()
			}
		}
	}
	if come < probeDepth {
		return 0, failed
	}
	return m.rate(come, last.Sub(began)), failed
}

// fetch begins one into a landing place, whose bytes are compared at its end.
func (m *measure) fetch(slot int, n int64, ends chan<- landed) (cancel func()) {
	f := m.from
	f.Offer, f.Chunk, f.Bytes = offerOf(n), m.first+int32(slot), n
	clear(m.land[slot][:n])
	return m.mover.Fetch(f, func(err error) {
		at := time.Now()
		if err == nil && !bytes.Equal(m.land[slot][:n], m.want[:n]) {
			err = fmt.Errorf("%w: other bytes came than are there", transfer.ErrPeer)
		}
		ends <- landed{slot, at, err}
	})
}

func (m *measure) rate(chunks int, d time.Duration) float64 {
	return float64(int64(chunks)*m.bytes) / max(d.Seconds(), 1e-9)
}
