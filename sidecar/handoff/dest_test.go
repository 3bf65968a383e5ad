package handoff

import (
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

// TestDestWalk takes every order of what can reach a rank's half of an import with two
// reads, and follows it with a model: Good needs both tickets done well and both pins
// held after them; quiet is said only when no ticket is open; each thing is said once.
func TestDestWalk(t *testing.T) {
	const inputs = 11
	walks := 0
	run := func(path []int) {
		d := NewDest(destD)
		var sub, done, good, held [2]bool
		var holds, dropped, failed, saidQuiet, saidBad bool
		for _, x := range path {
			i := x % 2
			switch {
			case x == 0:
				if d.State() == Reserving {
					d.Hold(Reserved{N: 7}, reads())
					holds = true
				}
			case x == 1:
				if !dropped {
					d.Drop()
					dropped = true
				}
			case x == 2:
				d.Fail("lost")
				failed = failed || d.State() == Bad
			case x <= 4: // submit; the machine asks the state
				if holds && !sub[i] && (d.State() == Linking || d.State() == Moving) {
					d.Submitted(i, uint64(i+1), 1)
					sub[i] = true
				}
			case x <= 6: // a good end; again is ignored
				r := d.TicketDone(uint64(i+1), 5, "", 2)
				if sub[i] && !done[i] {
					done[i], good[i] = true, true
					if (r == nil) != (d.State() != Moving) {
						t.Fatalf("%v: what to check is %v in state %v", path, r, d.State())
					}
				} else if r != nil {
					t.Fatalf("%v: a ticket ended twice", path)
				}
			case x <= 8: // held, or not
				d.Proved(from[i], Checked{checkOf(i), true})
				held[i] = held[i] || done[i]
			case x == 9:
				if sub[0] && !done[0] {
					d.TicketDone(1, 0, "boom", 2)
					done[0] = true
				}
			case x == 10:
				d.Proved(from[1], Checked{checkOf(1), false})
			}
			quiet := (!sub[0] || done[0]) && (!sub[1] || done[1])
			if d.Quiet() != quiet {
				t.Fatalf("%v: quiet %v", path, d.Quiet())
			}
			if d.State() == Good && !(good[0] && good[1] && held[0] && held[1] && !dropped && !failed) {
				t.Fatalf("%v: good without proof", path)
			}
			if dropped && d.State() != Quarantine {
				t.Fatalf("%v: dropped, and in state %v", path, d.State())
			}
			l, say := d.Report(0)
			switch {
			case !say:
			case l.N != 7 || l.ID != destD.ID || l.Attempt != 3 || l.Quiet != quiet || l.OK != (d.State() == Good):
				t.Fatalf("%v: says %+v in state %v", path, l, d.State())
			case l.Quiet && saidQuiet || !l.Quiet && saidBad:
				t.Fatalf("%v: said twice", path)
			}
			saidQuiet, saidBad = saidQuiet || say && l.Quiet, saidBad || say && !l.Quiet
			if over := d.State() == Bad || d.State() == Quarantine || d.State() == Good; over && quiet && !saidQuiet {
				t.Fatalf("%v: the leader does not hear that it is quiet", path)
			}
		}
		walks++
	}
	var walk func(path []int, more int)
	walk = func(path []int, more int) {
		run(path)
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
	d.Submitted(0, 1, 1)
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
