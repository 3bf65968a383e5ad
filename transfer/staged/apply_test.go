package staged

import "slices"

// apply makes one step happen.
func (w *world) apply(x step) {
	if x.cost {
		w.faults--
	}
	switch {
	case x.act == actPull:
		spec := w.set.jobs[x.a]
		w.job[x.a].pulled = true
		w.stepDst(spec.dst, Pull{srcID(spec.src), jobOf(x.a), pinOf(x.a), spec.chunks})
	case x.act == actCancel:
		w.stepDst(w.set.jobs[x.a].dst, Cancel{jobOf(x.a)})
	case x.act == actCancelSrc:
		w.stepSrc(w.set.jobs[x.a].src, Cancel{jobOf(x.a)})
	case x.act == actLease:
		w.lease(x.a)
	default:
		if !w.applySrc(x) && !w.applyDst(x) && !w.applyWire(x) {
			w.applyLink(x)
		}
	}
	w.settle()
	w.check()
}

func (w *world) lease(j int) {
	w.job[j].over = true
	end := w.src[w.set.jobs[j].src]
	open := end.g.Over(pinOf(j))
	if len(open) == 0 {
		w.unpin(pinOf(j))
	}
	for _, g := range open {
		end.local = append(end.local, Revoked{g})
	}
}

// settle forgets what can make no difference: timers that nobody waits for, since their
// Overdue would be ignored, and bytes of chunks that are free, since every writer of a
// chunk has a number of its own and old bytes equal nobody's.
func (w *world) settle() {
	for i := range w.job {
		if j := &w.job[i]; j.ended > 0 {
			clear(j.got)
			j.why = min(j.why, 1)
		}
	}
	for _, end := range w.src {
		for i, c := range end.m.chunks {
			if c.state == srcFree && !w.touchedSrc(end, int32(i)) {
				end.mem[i] = [3]part{}
			}
		}
	}
	for _, end := range w.dst {
		for i, c := range end.m.chunks {
			if c.state == dstFree && !slices.ContainsFunc(end.unpacks, func(u unpacking) bool { return u.chunk == int32(i) }) {
				end.mem[i] = [3]part{}
			}
		}
	}
	for _, end := range w.src {
		end.waits = slices.DeleteFunc(end.waits, func(t uint64) bool {
			return !slices.ContainsFunc(end.m.chunks, func(c sourceChunk) bool { return c.state == srcOffered && c.offer == t })
		})
	}
	for _, end := range w.dst {
		end.waits = slices.DeleteFunc(end.waits, func(t uint64) bool { return end.m.open(dstFetching, t) == nil })
	}
}

func (w *world) touchedSrc(end *srcEnd, chunk int32) bool {
	s := slices.Index(w.src, end)
	for d, o := range w.dst {
		if slices.ContainsFunc(o.fetches, func(f fetching) bool { return f.src == s && f.from == chunk && w.reads(d, f) }) {
			return true
		}
	}
	return false
}

func take[T any](s *[]T, i int) T {
	x := (*s)[i]
	*s = slices.Delete(*s, i, i+1)
	return x
}

func (w *world) applySrc(x step) bool {
	switch x.act {
	case actLocal:
		w.stepSrc(x.a, take(&w.src[x.a].local, 0))
	case actPackPart:
		p := &w.src[x.a].packs[x.b]
		p.written |= uint8(x.c)
		for k := range 3 {
			if x.c>>k&1 == 1 {
				w.src[x.a].mem[p.chunk][k] = p.code
			}
		}
		if !w.job[p.code>>8&0xff-1].pinned {
			w.fail("I3: job %d is packed from memory that was unpinned", p.code>>8&0xff-1)
		}
	case actPackDone:
		p := take(&w.src[x.a].packs, x.b)
		w.stepSrc(x.a, PackDone{p.ticket, dead(p.dead)})
	case actKillPacker:
		for i := range w.src[x.a].packs {
			w.src[x.a].packs[i].dead = true
		}
	case actOverdueSrc:
		w.stepSrc(x.a, Overdue{take(&w.src[x.a].waits, x.b)})
	default:
		return false
	}
	return true
}

func dead(is bool) Reason {
	if is {
		return Mover
	}
	return 0
}

func (w *world) applyDst(x step) bool {
	switch x.act {
	case actFetchPart:
		f := &w.dst[x.a].fetches[x.b]
		f.moved |= uint8(x.c)
		for k := range 3 {
			if x.c>>k&1 == 1 {
				w.dst[x.a].mem[f.chunk][k] = w.src[f.src].mem[f.from][k]
			}
		}
	case actFetchDone:
		f := take(&w.dst[x.a].fetches, x.b)
		why := Reason(0)
		if f.moved != 7 {
			why = Transfer
		}
		w.stepDst(x.a, FetchDone{f.ticket, why})
	case actStick:
		w.dst[x.a].fetches[x.b].stuck = true
	case actVerify:
		u := &w.dst[x.a].unpacks[x.b]
		u.phase = 1
		if m := w.dst[x.a].mem[u.chunk]; m[0] != u.code || m[2] != u.code {
			w.stepDst(x.a, UnpackDone{take(&w.dst[x.a].unpacks, x.b).ticket, BadStamp})
		}
	case actUnpack:
		u := &w.dst[x.a].unpacks[x.b]
		u.phase = 2
		if w.dst[x.a].mem[u.chunk][1] != u.code {
			w.fail("I2: a chunk is unpacked between stamps of a job that did not write it")
		}
		w.job[u.code>>8&0xff-1].got[u.code&0xff] = u.code
	case actUnpackDone:
		u := take(&w.dst[x.a].unpacks, x.b)
		w.stepDst(x.a, UnpackDone{u.ticket, dead(u.dead)})
	case actKillUnpacker:
		for i := range w.dst[x.a].unpacks {
			w.dst[x.a].unpacks[i].dead = true
		}
	case actOverdueDst:
		w.stepDst(x.a, Overdue{take(&w.dst[x.a].waits, x.b)})
	default:
		return false
	}
	return true
}

func (m *wire) exit() { m.now, m.seen, m.dying = 0, m.now, false }

func (w *world) applyWire(x step) bool {
	switch x.act {
	case actKillSrcWire, actSrcWireExit:
		w.link[x.a].sw.exit()
	case actSrcWireSeen:
		s, d := w.at(x.a)
		inc := w.link[x.a].sw.seen
		w.link[x.a].sw.seen = 0
		w.stepSrc(s, WireExit{dstID(d), inc})
	case actSrcWireUp:
		w.swUp(x.a)
	case actKillDstWire, actDstWireExit:
		w.link[x.a].dw.exit() // its fetches end one by one, or when the exit is seen
	case actDstWireSeen:
		s, d := w.at(x.a)
		inc := w.link[x.a].dw.seen
		w.link[x.a].dw.seen = 0
		w.dst[d].fetches = slices.DeleteFunc(w.dst[d].fetches, func(f fetching) bool { return f.src == s && f.wire == inc })
		w.stepDst(d, WireExit{srcID(s), inc})
	case actDstWireUp:
		w.dwUp(x.a)
	default:
		return false
	}
	return true
}

func (w *world) applyLink(x step) {
	l := &w.link[x.a]
	s, d := w.at(x.a)
	switch x.act {
	case actToSrc:
		w.stepSrc(s, FromPeer{dstID(d), take(&l.toSrc, 0)})
	case actToDst:
		w.stepDst(d, FromPeer{srcID(s), take(&l.toDst, 0)})
	case actDupSrc:
		l.lateSrc = []Message{l.toSrc[0]}
	case actDupDst:
		l.lateDst = []Message{l.toDst[0]}
	case actLateSrc:
		w.stepSrc(s, FromPeer{dstID(d), take(&l.lateSrc, 0)})
	case actLateDst:
		w.stepDst(d, FromPeer{srcID(s), take(&l.lateDst, 0)})
	case actSwapSrc:
		l.toSrc[0], l.toSrc[1] = l.toSrc[1], l.toSrc[0]
	case actSwapDst:
		l.toDst[0], l.toDst[1] = l.toDst[1], l.toDst[0]
	case actDownSrc:
		l.downSrc = false
		w.stepSrc(s, PeerDown{dstID(d)})
	case actDownDst:
		l.downDst = false
		w.stepDst(d, PeerDown{srcID(s)})
	case actUp:
		w.peerUp(x.a)
	case actBreak:
		l.up, l.downSrc, l.downDst = false, true, true
		if x.b < len(l.toSrc) {
			l.lateSrc = []Message{l.toSrc[x.b]}
		}
		if x.c < len(l.toDst) {
			l.lateDst = []Message{l.toDst[x.c]}
		}
		l.toSrc, l.toDst = nil, nil
	}
}
