package machine

import (
	"crypto/sha256"
	"fmt"

	"github.com/batonkv/baton/sidecar/handoff"
)

// fakeEngine applies decisions when Through comes (rank 0 tells the others).
type fakeEngine struct {
	session  Session
	attach   handoff.Attach
	held     []handoff.Decision
	got      []handoff.ToEngine
	full     bool // answer Reserve with Full
	admitted []handoff.Decision
	freed    []handoff.Decision
	unpinned []handoff.UnpinExport
	released []handoff.Decision
	reserved []handoff.Decision
	reserves int
	none     int             // of them that found no room
	given    int             // of the others that were given back
	has      map[uint64]bool // those that took memory
	weights  uint64
	cached   int32
	fence    uint64 // of what it reserves
	pool     *prefixPool
	acts     []handoff.Decision
	draining bool
	mute     bool  // does not answer actions
	refuses  error // answers them so
	late     bool  // answers Reserve when a test says so
	twist    bool  // answer another digest

	// What outlives a session.
	last, applied uint64
	tail          handoff.Tail
	pins, imports map[string]bool
	story         []string          // decisions that were applied
	ends          map[string]string // of imports: how
}

func (e *fakeEngine) take(n *node, f ToEngine) {
	if f.Session != e.session {
		return
	}
	e.got = append(e.got, f.Msg)
	switch m := f.Msg.(type) {
	case handoff.Decision:
		if m.N == e.last+1 {
			e.last, e.held, e.tail = m.N, append(e.held, m), e.tail.Add(m)
		}
		n.step(FromEngine{f.Session, handoff.Held{N: e.last}})
	case handoff.Imported:
		delete(e.imports, m.Label)
		e.ends[m.Label] = "imported"
	case handoff.Failed:
		delete(e.imports, m.Label)
		delete(e.pins, m.Label)
		e.ends[m.Label] = fmt.Sprint("failed, safe ", m.SourceSafe)
	case handoff.Through:
		for _, p := range n.w.order { // rank 0 broadcasts in its step
			if p.Group == n.self.Group {
				n.w.nodes[p].eng.apply(n.w.nodes[p], m.N)
			}
		}
	case handoff.UnpinExport:
		e.unpinned = append(e.unpinned, m)
		delete(e.pins, m.Label)
	}
}

func (e *fakeEngine) apply(n *node, through uint64) {
	for len(e.held) > 0 && e.held[0].N <= through {
		d := e.held[0]
		e.held = e.held[1:]
		e.applied, e.story = d.N, append(e.story, fmt.Sprintf("%d %v %d%s", d.N, d.Kind, d.Of, d.Label))
		switch d.Kind {
		case handoff.Reserve:
			e.reserves++
			e.reserved = append(e.reserved, d)
			r := handoff.Reserved{N: d.N, Slot: 1, Cached: e.cached, Full: e.full, Fence: e.fence}
			for b := range (d.Tokens + 15) / 16 {
				r.Blocks = append(r.Blocks, b+3)
			}
			if n.w.kvOnly {
				r.Slot = -1
			}
			if e.pool != nil {
				e.pool.reserve(d, &r)
			}
			r.Digest = handoff.Digest(sha256.Sum256(fmt.Append(nil, r.Blocks, e.twist)))
			if e.full {
				e.none++
			} else {
				e.has[d.N] = true
			}
			if !e.late {
				e.say(n, r)
			}
		case handoff.Admit:
			e.admitted = append(e.admitted, d)
			if e.pool != nil {
				e.pool.admit(d.Of)
			}
		case handoff.Drop:
			if e.pool != nil && e.pool.holds[d.Of] != nil {
				e.pool.holds[d.Of].fresh = nil // what it would have brought
			}
		case handoff.ReleaseQuarantine:
			e.released = append(e.released, d)
			if e.pool != nil {
				e.pool.end(n, d.Of)
			}
			if e.has[d.Of] {
				e.given++
			}
		case handoff.Free:
			e.freed = append(e.freed, d)
			delete(e.pins, d.Label)
		case handoff.SetWeightsEpoch:
			e.weights = d.WeightsEpoch
		case handoff.Lifecycle:
			e.acts, e.story = append(e.acts, d), append(e.story, d.Action.String())
			e.draining = d.Draining(e.draining)
			if !e.mute {
				e.say(n, handoff.LifecycleAck{N: d.N, Err: e.refuses})
			}
		}
	}
	e.say(n, handoff.Applied{N: e.applied})
}

// say sends what is lost without a session.
func (e *fakeEngine) say(n *node, msg handoff.FromEngine) {
	if e.session != 0 {
		n.step(FromEngine{e.session, msg})
	}
}
