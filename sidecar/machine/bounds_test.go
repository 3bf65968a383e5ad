package machine

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// exports has a rank's engine export, as it is.
func (n *node) exports(e handoff.Export) {
	n.eng.pins[e.Label] = true
	n.step(FromEngine{n.eng.session, e})
	n.w.run()
}

// TestExportOfWhatIsNotThere: memory that a rank has not, or names twice, is refused before
// anybody is told of it, at whichever rank; the others give theirs back, after a lease at most.
func TestExportOfWhatIsNotThere(t *testing.T) {
	good := handoff.Export{Label: "r", Blocks: []int32{63, 0, 5}, Slot: 7, Tokens: 40, Position: 40}
	for name, change := range map[string]func(*handoff.Export){
		"beyond the shard": func(e *handoff.Export) { e.Blocks = []int32{0, 64, 1} },
		"less than none":   func(e *handoff.Export) { e.Blocks = []int32{0, -1, 1} },
		"one block twice":  func(e *handoff.Export) { e.Blocks = []int32{0, 1, 0} },
		"too many":         func(e *handoff.Export) { e.Blocks = []int32{0, 1, 2, 3} },
		"too few":          func(e *handoff.Export) { e.Blocks = []int32{0, 1} },
		"a slot beyond":    func(e *handoff.Export) { e.Slot = 8 },
		"no slot":          func(e *handoff.Export) { e.Slot = -1 },
	} {
		for bad := range 2 {
			t.Run(fmt.Sprint(name, " at rank ", bad), func(t *testing.T) {
				w := pair(t, 2, 1)
				for r := range 2 {
					e := good
					if r == bad {
						change(&e)
					}
					w.at("p", r).exports(e)
				}
				f, ok := w.at("p", bad).failed("r")
				if !ok || !errors.Is(f.Err, handoff.ErrEngine) {
					t.Fatalf("the engine hears %+v", w.at("p", bad).eng.got)
				}
				if bad == 0 { // of a rank's refusal its leader hears, of its leader's nobody
					w.advance(w.at("p", 0).m.cfg.Lease)
				}
				for r := range 2 {
					if n := w.at("p", r); len(n.m.pins) != 0 || len(n.closed) != 0 || len(n.m.lead.labels) != 0 {
						t.Errorf("rank %d: %d pins, closed %v", r, len(n.m.pins), n.closed)
					}
				}
				man := w.export("p", "next", 40)
				c := w.importStart("d", man)
				w.run()
				if err := w.ended(c).Err; err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func (n *node) failed(label string) (f handoff.Failed, ok bool) {
	for _, m := range n.eng.got {
		if x, is := m.(handoff.Failed); is && x.Label == label {
			f, ok = x, true
		}
	}
	return f, ok
}

// TestPartsOfWhatIsNotThere: a part is looked at with those before it.
func TestPartsOfWhatIsNotThere(t *testing.T) {
	first := handoff.ExportPart{Label: "r", Part: 1, Blocks: []int32{7}, Tokens: 40, Position: 40, Reach: handoff.All(16)}
	for name, c := range map[string]struct {
		then handoff.FromEngine
		want error
	}{
		"goes on":               {handoff.ExportPart{Part: 2, Blocks: []int32{8}, Tokens: 40, Position: 40, Reach: handoff.All(32)}, nil},
		"closes":                {handoff.Export{Blocks: []int32{7, 8, 9}, Tokens: 40, Position: 40, Parts: 1}, nil},
		"a block of the first":  {handoff.ExportPart{Part: 2, Blocks: []int32{7}, Tokens: 40, Position: 40, Reach: handoff.All(32)}, handoff.ErrEngine},
		"beyond the shard":      {handoff.ExportPart{Part: 2, Blocks: []int32{64}, Tokens: 40, Position: 40, Reach: handoff.All(32)}, handoff.ErrEngine},
		"more than the prompt":  {handoff.ExportPart{Part: 2, Blocks: []int32{1, 2, 3}, Tokens: 40, Position: 40, Reach: handoff.All(32)}, handoff.ErrEngine},
		"other weights":         {handoff.ExportPart{Part: 2, Blocks: []int32{8}, Tokens: 40, Position: 40, Reach: handoff.All(32), WeightsEpoch: 1}, handoff.ErrWeights},
		"closes, one twice":     {handoff.Export{Blocks: []int32{7, 8, 7}, Tokens: 40, Position: 40, Parts: 1}, handoff.ErrEngine},
		"closes, beyond":        {handoff.Export{Blocks: []int32{7, 8, 64}, Tokens: 40, Position: 40, Parts: 1}, handoff.ErrEngine},
		"closes, a slot beyond": {handoff.Export{Blocks: []int32{7, 8, 9}, Slot: 8, Tokens: 40, Position: 40, Parts: 1}, handoff.ErrEngine},
		"closes another salt": {handoff.Export{Blocks: []int32{7, 8, 9}, Tokens: 40, Position: 40, Parts: 1,
			Salt: handoff.Salt{Namespace: "n"}}, handoff.ErrEngine},
	} {
		t.Run(name, func(t *testing.T) {
			w := pair(t, 1, 1)
			p := w.at("p", 0)
			p.step(FromEngine{p.eng.session, first})
			switch m := c.then.(type) {
			case handoff.ExportPart:
				m.Label = "r"
				p.step(FromEngine{p.eng.session, m})
			case handoff.Export:
				m.Label = "r"
				p.step(FromEngine{p.eng.session, m})
			}
			w.run()
			if n := len(p.closed); (c.want == nil) != (n == 0) || n > 0 && !errors.Is(p.closed[0], c.want) {
				t.Fatalf("closed %v, want %v", p.closed, c.want)
			}
		})
	}
}

// TestReservedWhatIsNotThere: an import whose memory cannot be ends before a byte is read.
func TestReservedWhatIsNotThere(t *testing.T) {
	for name, change := range map[string]func(*handoff.Reserved){
		"beyond the shard": func(r *handoff.Reserved) { r.Blocks[1] = 64 },
		"one block twice":  func(r *handoff.Reserved) { r.Blocks[1] = r.Blocks[0] },
		"a slot beyond":    func(r *handoff.Reserved) { r.Slot = 8 },
	} {
		t.Run(name, func(t *testing.T) {
			w := pair(t, 1, 2)
			w.onPull = func(n *node, _ Pull) error {
				if n.self.Rank == 1 {
					t.Error("something was read")
				}
				return nil
			}
			d := w.at("d", 1)
			d.eng.late = true
			c := w.importStart("d", w.export("p", "r1", 40))
			w.run()
			r := handoff.Reserved{N: d.eng.reserved[0].N, Blocks: []int32{3, 4, 5}, Slot: 1,
				Digest: handoff.Digest(sha256.Sum256(fmt.Append(nil, []int32{3, 4, 5}, false)))} // which fakeEngine says
			change(&r)
			d.eng.say(d, r)
			w.run()
			if err := w.ended(c).Err; !errors.Is(err, handoff.ErrTransfer) {
				t.Errorf("the import ends with %v", err)
			}
			if len(d.eng.released) != 1 || len(d.eng.admitted) != 0 {
				t.Errorf("%d released, %d admitted", len(d.eng.released), len(d.eng.admitted))
			}
		})
	}
}

// TestCapacityOverShards: an engine that counts what its shards have not does not attach.
func TestCapacityOverShards(t *testing.T) {
	for name, c := range map[string]handoff.Capacity{
		"blocks":       {Blocks: 65, Slots: 8, BlockTokens: 16},
		"slots":        {Blocks: 64, Slots: 9, BlockTokens: 16},
		"other blocks": {Blocks: 64, Slots: 8, BlockTokens: 32},
	} {
		w := pair(t, 1, 1)
		p := w.at("p", 0)
		a := p.eng.attach
		p.step(EngineDown{p.eng.session})
		w.run()
		a.Capacity = c
		if p.attach(a); len(p.closed) == 0 || !errors.Is(p.closed[0], handoff.ErrAttach) || p.m.engine != nil {
			t.Errorf("%s: closed %v", name, p.closed)
		}
	}
}

// TestRankExportsAnotherLabel: what a rank exports and others do not ends after a lease,
// whatever hold it asks, and who is missing is said.
func TestRankExportsAnotherLabel(t *testing.T) {
	for _, hold := range []time.Duration{0, 5 * time.Second, time.Hour} {
		w := pair(t, 2, 1)
		p, p1 := w.at("p", 0), w.at("p", 1)
		e := handoff.Export{Label: "u0", Blocks: []int32{0, 1, 2}, Tokens: 40, Position: 40, MaxHold: hold}
		p.exports(e)
		e.Label = "u1"
		p1.exports(e)
		w.advance(p.m.cfg.Lease - 1)
		if len(p.m.pins) != 1 || len(p1.m.pins) != 1 {
			t.Fatalf("%v: %d and %d pins before the end", hold, len(p.m.pins), len(p1.m.pins))
		}
		w.advance(1)
		if f, ok := p.failed("u0"); !ok || !errors.Is(f.Err, handoff.ErrDeadline) || !strings.Contains(f.Err.Error(), "ranks [1]") {
			t.Errorf("%v: the leader's engine hears %+v", hold, f)
		}
		if len(p1.eng.unpinned) != 1 || p1.eng.unpinned[0].Label != "u1" {
			t.Errorf("%v: the rank's engine hears %+v", hold, p1.eng.got)
		}
		var causes []string
		for _, e := range p.published {
			if e.Kind == events.Expired {
				causes = append(causes, e.Label+": "+e.Cause)
			}
		}
		if len(causes) != 2 || !slices.ContainsFunc(causes, func(c string) bool { return strings.HasPrefix(c, "u0") && strings.Contains(c, "ranks [1]") }) ||
			!slices.ContainsFunc(causes, func(c string) bool { return strings.HasPrefix(c, "u1") && strings.Contains(c, "ranks [0]") }) {
			t.Errorf("%v: told %q", hold, causes)
		}
		for _, n := range []*node{p, p1} {
			if l := n.m.Load(); l != (Load{}) || len(n.eng.pins) != 0 || len(n.closed) != 0 {
				t.Errorf("%v: %v holds %+v, its engine %v, closed %v", hold, n.self, l, n.eng.pins, n.closed)
			}
		}
		c := w.importStart("d", w.export("p", "u1", 40))
		w.run()
		if err := w.ended(c).Err; err != nil {
			t.Errorf("the label, exported anew: %v", err)
		}
	}
}

// TestRankIsLate: a rank that exports within the lease is waited for, and the lease counts
// from there.
func TestRankIsLate(t *testing.T) {
	w := pair(t, 2, 1)
	p := w.at("p", 0)
	e := handoff.Export{Label: "r", Blocks: []int32{0, 1, 2}, Tokens: 40, Position: 40}
	p.exports(e)
	w.advance(p.m.cfg.Lease - 1)
	w.at("p", 1).exports(e)
	s := p.m.lead.sources[p.m.lead.labels["r"]]
	if s == nil || s.State() != handoff.Leasing || s.Deadline() != w.now+p.m.cfg.Lease {
		t.Fatalf("leased %+v", s)
	}
	if f, ok := p.failed("r"); ok {
		t.Error(f)
	}
}
