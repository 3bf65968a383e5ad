package staged

import (
	"slices"
	"time"

	"github.com/batonkv/baton/internal/walk"
)

func timeOf(n int) time.Duration { return time.Duration(n) }

// act is a kind of step of a world.
type act uint8

const (
	actPull act = iota
	actLocal
	actToSrc
	actToDst
	actPackPart
	actPackDone
	actFetchPart
	actFetchDone
	actVerify
	actUnpack
	actUnpackDone
	actSrcWireExit
	actSrcWireSeen
	actSrcWireUp
	actDstWireExit
	actDstWireSeen
	actDstWireUp
	actDownSrc
	actDownDst
	// progress only where a fetch is stuck
	actOverdueSrc
	actOverdueDst
	actCancel
	// never progress, no cost
	actLateSrc
	actLateDst
	actUp
	// faults
	actKillSrcWire
	actKillDstWire
	actKillPacker
	actKillUnpacker
	actBreak
	actStick
	actDupSrc
	actDupDst
	actSwapSrc
	actSwapDst
	actLease
	actCancelSrc
)

var actNames = [...]string{
	actPull:         "job %d is pulled",
	actLocal:        "source %d hears of a grant",
	actToSrc:        "link %d: the source takes a message",
	actToDst:        "link %d: the destination takes a message",
	actPackPart:     "source %d: pack %d writes parts %03b",
	actPackDone:     "source %d: pack %d is done",
	actFetchPart:    "destination %d: fetch %d moves parts %03b",
	actFetchDone:    "destination %d: fetch %d is done",
	actVerify:       "destination %d: unpack %d compares the stamps",
	actUnpack:       "destination %d: unpack %d copies",
	actUnpackDone:   "destination %d: unpack %d is done",
	actSrcWireExit:  "link %d: the source's killed wire mover is gone",
	actSrcWireSeen:  "link %d: the source sees its wire mover's exit",
	actSrcWireUp:    "link %d: the source's wire mover starts",
	actDstWireExit:  "link %d: the destination's killed wire mover is gone",
	actDstWireSeen:  "link %d: the destination sees its wire mover's exit",
	actDstWireUp:    "link %d: the destination's wire mover starts",
	actDownSrc:      "link %d: the source notices the break",
	actDownDst:      "link %d: the destination notices the break",
	actOverdueSrc:   "source %d: ticket %d is overdue",
	actOverdueDst:   "destination %d: ticket %d is overdue",
	actCancel:       "job %d is canceled",
	actLateSrc:      "link %d: the source takes a late message",
	actLateDst:      "link %d: the destination takes a late message",
	actUp:           "link %d: a new session",
	actKillSrcWire:  "link %d: the source's wire mover dies",
	actKillDstWire:  "link %d: the destination's wire mover dies",
	actKillPacker:   "source %d: the local mover dies",
	actKillUnpacker: "destination %d: the local mover dies",
	actBreak:        "link %d: the session breaks; message %d, %d outlive it",
	actStick:        "destination %d: fetch %d sticks",
	actDupSrc:       "link %d: a message to the source is copied, the copy comes at any time",
	actDupDst:       "link %d: a message to the destination is copied, the copy comes at any time",
	actSwapSrc:      "link %d: two messages to the source change places",
	actSwapDst:      "link %d: two messages to the destination change places",
	actLease:        "job %d: the lease ends",
	actCancelSrc:    "job %d: the source gives it up",
}

type step struct {
	act     act
	a, b, c int
	idle    bool // not progress
	cost    bool // taken from the budget
}

func (s step) label() walk.Step {
	return walk.Step{Fault: s.idle, Name: actNames[s.act], Args: [3]int{s.a, s.b, s.c}}
}

// steps lists what can happen, in one order.
func (w *world) steps() (out []step) {
	add := func(a act, x, y, z int) { out = append(out, step{act: a, a: x, b: y, c: z}) }
	idle := func(a act, x, y, z int, cost bool) {
		if !cost || w.faults > 0 && (w.set.acts == nil || slices.Contains(w.set.acts, a)) {
			out = append(out, step{act: a, a: x, b: y, c: z, idle: true, cost: cost})
		}
	}
	for j := range w.job {
		w.jobSteps(j, add, idle)
	}
	for s, end := range w.src {
		w.srcSteps(s, end, add, idle)
	}
	for d, end := range w.dst {
		w.dstSteps(d, end, add, idle)
	}
	for i := range w.link {
		w.linkSteps(i, add, idle)
	}
	return out
}

type (
	adder func(a act, x, y, z int)
	idler func(a act, x, y, z int, cost bool)
)

// sticky reports whether a fetch between the two is stuck; d < 0: any.
func (w *world) sticky(s, d int) bool {
	for k, end := range w.dst {
		if (d < 0 || k == d) && slices.ContainsFunc(end.fetches, func(f fetching) bool { return f.stuck && (s < 0 || f.src == s) }) {
			return true
		}
	}
	return false
}

func (w *world) jobSteps(j int, add adder, idle idler) {
	s, spec := &w.job[j], w.set.jobs[j]
	// equal jobs are pulled in order: any other order is this one under other names
	if !s.pulled && (j == 0 || w.set.jobs[j-1] != spec || w.job[j-1].pulled) {
		add(actPull, j, 0, 0)
	}
	if s.pulled && s.ended == 0 {
		if w.sticky(spec.src, spec.dst) {
			add(actCancel, j, 0, 0)
		} else {
			idle(actCancel, j, 0, 0, true)
		}
	}
	if !s.over {
		idle(actLease, j, 0, 0, true)
	}
	if _, sj := w.src[spec.src].m.find(jobOf(j)); sj != nil {
		idle(actCancelSrc, j, 0, 0, true)
	}
}

// parts lists the parts of a copy that may move next, as sets of bits.
func (w *world) parts(done uint8) (out []int) {
	if w.set.copies == atOnce && done == 0 {
		return []int{7}
	}
	for p := range 3 {
		if done>>p&1 == 0 {
			out = append(out, 1<<p)
			if w.set.copies == headFirst {
				break
			}
		}
	}
	return out
}

func (w *world) srcSteps(s int, end *srcEnd, add adder, idle idler) {
	if len(end.local) > 0 {
		add(actLocal, s, 0, 0)
	}
	alive := false
	for i, p := range end.packs {
		if !p.dead {
			alive = true
			for _, k := range w.parts(p.written) {
				add(actPackPart, s, i, k)
			}
		}
		if p.dead || p.written == 7 {
			add(actPackDone, s, i, 0)
		}
	}
	if alive {
		idle(actKillPacker, s, 0, 0, true)
	}
	for i := range end.waits {
		if w.sticky(s, -1) {
			add(actOverdueSrc, s, i, 0)
		} else {
			idle(actOverdueSrc, s, i, 0, false)
		}
	}
}

// reads reports whether a fetch can touch memory: both processes that it names live.
func (w *world) reads(d int, f fetching) bool {
	l := w.linkOf(f.src, d)
	return (l.sw.now == f.of || f.of == 0) && l.dw.now == f.wire
}

func (w *world) dstSteps(d int, end *dstEnd, add adder, idle idler) {
	for i, f := range end.fetches {
		if f.stuck {
			continue
		}
		reads := w.reads(d, f)
		if reads {
			for _, k := range w.parts(f.moved) {
				add(actFetchPart, d, i, k)
			}
		}
		if f.moved == 7 || !reads || f.canceled {
			add(actFetchDone, d, i, 0)
		}
		idle(actStick, d, i, 0, true)
	}
	alive := false
	for i, u := range end.unpacks {
		alive = alive || !u.dead
		switch {
		case u.dead || u.phase == 2:
			add(actUnpackDone, d, i, 0)
		case u.phase == 0:
			add(actVerify, d, i, 0)
		default:
			add(actUnpack, d, i, 0)
		}
	}
	if alive {
		idle(actKillUnpacker, d, 0, 0, true)
	}
	for i := range end.waits {
		if w.sticky(-1, d) {
			add(actOverdueDst, d, i, 0)
		} else {
			idle(actOverdueDst, d, i, 0, false)
		}
	}
}

func (m *wire) steps(i int, exit, seen, up, kill act, add adder, idle idler) {
	switch {
	case m.dying:
		add(exit, i, 0, 0)
	case m.now != 0:
		idle(kill, i, 0, 0, true)
	case m.seen != 0:
		add(seen, i, 0, 0)
	default:
		add(up, i, 0, 0)
	}
}

func (w *world) linkSteps(i int, add adder, idle idler) {
	l := &w.link[i]
	l.sw.steps(i, actSrcWireExit, actSrcWireSeen, actSrcWireUp, actKillSrcWire, add, idle)
	l.dw.steps(i, actDstWireExit, actDstWireSeen, actDstWireUp, actKillDstWire, add, idle)
	if len(l.toSrc) > 0 {
		add(actToSrc, i, 0, 0)
		if len(l.lateSrc) == 0 {
			idle(actDupSrc, i, 0, 0, true)
		}
	}
	if len(l.toDst) > 0 {
		add(actToDst, i, 0, 0)
		if len(l.lateDst) == 0 {
			idle(actDupDst, i, 0, 0, true)
		}
	}
	if len(l.toSrc) > 1 {
		idle(actSwapSrc, i, 0, 0, true)
	}
	if len(l.toDst) > 1 {
		idle(actSwapDst, i, 0, 0, true)
	}
	if len(l.lateSrc) > 0 {
		idle(actLateSrc, i, 0, 0, false)
	}
	if len(l.lateDst) > 0 {
		idle(actLateDst, i, 0, 0, false)
	}
	if l.downSrc {
		add(actDownSrc, i, 0, 0)
	}
	if l.downDst {
		add(actDownDst, i, 0, 0)
	}
	if !l.up && !l.downSrc && !l.downDst && l.ups <= w.set.reconnect {
		idle(actUp, i, 0, 0, false)
	}
	if !l.up {
		return
	}
	for a := 0; a == 0 || a < len(l.toSrc); a++ {
		for b := 0; b == 0 || b < len(l.toDst); b++ {
			idle(actBreak, i, a, b, true)
		}
	}
}
