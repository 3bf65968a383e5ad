package handoff

import (
	"slices"
	"testing"

	"github.com/batonkv/baton/transfer/layout"
)

func rank(r int) layout.Rank { return layout.Rank(r) }

var (
	from  = [2]Member{{Group: "p", Rank: 0, Incarnation: 1}, {Group: "p", Rank: 1, Incarnation: 2}}
	destD = Decision{N: 7, Kind: Reserve, ID: ID{N: 1}, Attempt: 3}
)

func reads() []Read {
	return []Read{{From: from[0], Source: PinInfo{Pin: 1, Generation: 1}}, {From: from[1], Source: PinInfo{Pin: 2, Generation: 1}, Pair: 1}}
}

func checkOf(i int) Check { return Check{ID: destD.ID, Attempt: 3, Pin: PinID(i + 1), Generation: 1} }

// destModel follows a Dest with two reads.
type destModel struct {
	t                      *testing.T
	d                      *Dest
	path                   []int
	sub, done, good, held  [2]bool
	holds, dropped, failed bool
	saidQuiet, saidBad     bool
}

// inputs of a walk: 0 hold, 1 drop, 2 fail, 3-4 submit, 5-6 a good end, 7-8 held after
// it, 9 a bad end, 10 not held.
const inputs = 11

func (m *destModel) give(x int) {
	d, i := m.d, (x+1)%2
	switch x {
	case 0:
		if d.State() == Reserving {
			d.Hold(Reserved{N: 7}, reads())
			m.holds = true
		}
	case 1:
		if !m.dropped {
			d.Drop()
			m.dropped = true
		}
	case 2:
		d.Fail("lost")
		m.failed = m.failed || d.State() == Bad
	case 3, 4: // the machine asks the state
		if m.holds && !m.sub[i] && (d.State() == Linking || d.State() == Moving) {
			p, _ := d.Next(i)
			d.Submitted(i, p, uint64(i+1), 1)
			m.sub[i] = true
		}
	case 5, 6:
		r := d.TicketDone(uint64(i+1), 5, "", 2)
		if first := m.sub[i] && !m.done[i]; !first && r != nil || first && (r == nil) != (d.State() != Moving) {
			m.t.Fatalf("%v: what to check is %v in state %v", m.path, r, d.State())
		} else if first {
			m.done[i], m.good[i] = true, true
		}
	case 7, 8:
		d.Proved(from[i], Checked{checkOf(i), true})
		m.held[i] = m.held[i] || m.done[i]
	case 9:
		if m.sub[0] && !m.done[0] {
			d.TicketDone(1, 0, "boom", 2)
			m.done[0] = true
		}
	case 10:
		d.Proved(from[1], Checked{checkOf(1), false})
	}
}

// check: Good needs both tickets done well and both pins held after them; quiet is said
// only when no ticket is open; each thing is said once, and quiet always.
func (m *destModel) check() {
	d, t := m.d, m.t
	quiet := (!m.sub[0] || m.done[0]) && (!m.sub[1] || m.done[1])
	switch {
	case d.Quiet() != quiet:
		t.Fatalf("%v: quiet %v", m.path, d.Quiet())
	case d.State() == Good && !(m.good[0] && m.good[1] && m.held[0] && m.held[1] && !m.dropped && !m.failed):
		t.Fatalf("%v: good without proof", m.path)
	case m.dropped && d.State() != Quarantine:
		t.Fatalf("%v: dropped, and in state %v", m.path, d.State())
	}
	l, say := d.Report(0)
	switch {
	case !say:
	case l.N != 7 || l.ID != destD.ID || l.Attempt != 3 || l.Quiet != quiet || l.OK != (d.State() == Good):
		t.Fatalf("%v: says %+v in state %v", m.path, l, d.State())
	case l.Quiet && m.saidQuiet || !l.Quiet && m.saidBad:
		t.Fatalf("%v: said twice", m.path)
	}
	m.saidQuiet, m.saidBad = m.saidQuiet || say && l.Quiet, m.saidBad || say && !l.Quiet
	if over := d.State() == Bad || d.State() == Quarantine || d.State() == Good; over && quiet && !m.saidQuiet {
		t.Fatalf("%v: the leader does not hear that it is quiet", m.path)
	}
}

// TestDestWalk takes every order of what can reach a rank's half of an import.
func TestDestWalk(t *testing.T) {
	walks := 0
	var walk func(path []int, more int)
	walk = func(path []int, more int) {
		m := destModel{t: t, d: NewDest(destD), path: path}
		for _, x := range path {
			m.give(x)
			m.check()
		}
		walks++
		for x := range inputs {
			if more > 0 {
				walk(append(path[:len(path):len(path)], x), more-1)
			}
		}
	}
	walk(nil, 5)
	walk([]int{0, 3, 4}, 5) // held and both submitted
	t.Logf("%d orders", walks)
}

func TestDestAnswersOfOthers(t *testing.T) {
	d := NewDest(destD)
	d.Hold(Reserved{N: 7}, reads()[:1])
	p, _ := d.Next(0)
	d.Submitted(0, p, 1, 1)
	d.Proved(from[0], Checked{checkOf(0), true}) // before the last byte
	if d.TicketDone(1, 5, "", 2); d.State() != Moving {
		t.Fatalf("a proof from before the copy's end counts: %v", d.State())
	}
	bad := []Checked{{checkOf(1), true}, {Check{ID: destD.ID, Attempt: 2, Pin: 1, Generation: 1}, true},
		{Check{ID: ID{N: 9}, Attempt: 3, Pin: 1, Generation: 1}, true}, {Check{ID: destD.ID, Attempt: 3, Pin: 1, Generation: 2}, true}}
	for _, c := range bad {
		if d.Proved(from[0], c); d.State() != Moving {
			t.Fatalf("%+v proves", c)
		}
	}
	if d.Proved(from[1], Checked{checkOf(0), true}); d.State() != Moving {
		t.Fatal("another rank's word proves")
	}
	if d.Proved(from[0], Checked{checkOf(0), true}); d.State() != Good {
		t.Fatalf("state %v", d.State())
	}
	if _, ok := d.Report(0); !ok {
		t.Fatal("not said")
	}
	if _, ok := d.Report(0); ok {
		t.Fatal("said twice")
	}
	d.Restate()
	if l, ok := d.Report(0); !ok || !l.OK || l.Bytes != 5 || l.Elapsed != 1 {
		t.Fatalf("restated %+v, %v", l, ok)
	}
}

func TestDestNothingToRead(t *testing.T) {
	d := NewDest(destD)
	if d.Hold(Reserved{N: 7}, nil); d.State() != Good || !d.Quiet() {
		t.Fatalf("state %v", d.State())
	}
	d.End()
	if d.Fail("late"); d.State() != Ended {
		t.Fatalf("state %v", d.State())
	}
}

// TestDestWaitsForSums: what was read and proved is good when its sums were made, and one
// that differs makes it bad, if the source held what was read: else it says nothing.
func TestDestWaitsForSums(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}, {0, 2, 1}} {
		d := NewDest(destD)
		d.Hold(Reserved{N: 7}, reads()[:1])
		p, _ := d.Next(0)
		d.Submitted(0, p, 1, 1)
		d.Adding(d.TicketDone(1, 5, "", 2), 9)
		for i, x := range order {
			switch x {
			case 0:
				d.Proved(from[0], Checked{checkOf(0), true})
			case 1:
				d.Added(9, Compared{Equal: 1})
			case 2:
				d.Added(8, Compared{Differ: 1}) // another's
			}
			proved, added := slices.Contains(order[:i+1], 0), slices.Contains(order[:i+1], 1)
			if good := d.State() == Good; good != (proved && added) {
				t.Fatalf("%v: state %v after %d", order, d.State(), i)
			}
		}
		d.Differ("late")
		if l, ok := d.Report(0); !ok || !l.OK || l.Differs {
			t.Errorf("a good one is not spoilt: %+v", l)
		}
	}
	for _, held := range []bool{false, true} {
		for _, first := range []bool{false, true} {
			d := NewDest(destD)
			d.Hold(Reserved{N: 7}, reads()[:1])
			p, _ := d.Next(0)
			d.Submitted(0, p, 1, 1)
			d.Adding(d.TicketDone(1, 5, "", 2), 9)
			answer := func() { d.Proved(from[0], Checked{checkOf(0), held}) }
			if first {
				answer()
			}
			d.Added(9, Compared{Equal: 2, Differ: 1, Why: "attn.k"})
			if !first {
				if _, _, ok := d.Blame(); ok || d.State() != Moving {
					t.Fatalf("blamed before the source answered, state %v", d.State())
				}
				answer()
			}
			r, c, ok := d.Blame()
			if ok != held || held && (r.From != from[0] || c.Equal != 2 || c.Differ != 1) {
				t.Fatalf("held %v: blamed %v: %+v", held, ok, c)
			}
			if _, _, again := d.Blame(); again {
				t.Fatal("blamed twice")
			}
			if l, ok := d.Report(0); !ok || l.OK || l.Differs != held || !l.Quiet || held && l.Why != "attn.k" {
				t.Errorf("held %v: %+v, %v", held, l, ok)
			}
		}
	}
}
