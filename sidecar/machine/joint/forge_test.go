package joint

import (
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/staged"
)

// stranger is a sidecar of another group with a certificate of its own: it says what it
// likes, under its own name.
var stranger = handoff.Member{Group: "x", Incarnation: 77}

// ways in which what was said is said again, wrongly.
const (
	byStranger   = iota // its own importer, without the key where that is asked
	asOther             // by the stranger, who names the importer that asked
	byOtherLife         // by an earlier or later process of the same sidecar
	ofOtherTry          // of another attempt
	ofOtherReuse        // of another generation of the pin
	numWays
)

// forge says a word wrongly. A name that a session fixes is never another's.
func (r *runner) forge(l letter, way int) {
	from := l.from
	switch way {
	case byStranger, asOther:
		from = stranger
	case byOtherLife:
		from.Incarnation += 1000
	}
	if from != l.from {
		r.event(machine.PeerUp{Peer: from})
	}
	if x, ok := l.wire.(staged.Want); ok { // to read memory as it was before an engine came back
		x.Pin.Generation--
		r.wired(&letter{from: from, wire: x})
		return
	}
	r.event(machine.FromPeer{Peer: from, Msg: twisted(l.msg, way)})
	if from != l.from {
		r.event(machine.PeerDown{Peer: from, Err: errMade})
	}
}

// twisted is msg said in a way; some have nothing to twist.
func twisted(msg handoff.PeerMessage, way int) handoff.PeerMessage {
	own := handoff.Importer{Group: stranger.Group, Leader: stranger.Incarnation}
	switch m := msg.(type) {
	case handoff.Open:
		if way == byStranger {
			m.Importer = own
			m.Key[0] ^= 1
		}
		return m
	case handoff.Done:
		if way == byStranger {
			m.Importer = own
		}
		m.Attempt += other(way, ofOtherTry)
		return m
	case handoff.Withdraw:
		if way == byStranger {
			m.Importer = own
		}
		m.Attempt += other(way, ofOtherTry)
		return m
	case handoff.Opened:
		m.Attempt += other(way, ofOtherTry)
		return m
	case handoff.DoneAck:
		m.Attempt += other(way, ofOtherTry)
		return m
	case handoff.Landed:
		m.Attempt += other(way, ofOtherTry)
		return m
	case handoff.Checked:
		m.Check.Attempt += other(way, ofOtherTry)
		if way == ofOtherReuse {
			m.Check.Generation++
		}
		return m
	case handoff.Check:
		if way == ofOtherReuse {
			m.Generation++
		}
		return m
	}
	return msg
}

// other is the distance to an attempt that nobody makes: an answer to the next attempt
// under the name of the process that is asked is the lie of that process, against which
// nothing is promised.
func other(way, want int) handoff.Attempt {
	if way == want {
		return 1 << 20
	}
	return 0
}

// twists reports whether a letter said in a way is another word than the letter itself.
func twists(l *letter, way int) bool {
	if l.what != message || l.wire != nil {
		_, ok := l.wire.(staged.Want)
		return ok && way == ofOtherReuse
	}
	switch l.msg.(type) {
	case handoff.Done, handoff.Withdraw, handoff.Opened, handoff.DoneAck, handoff.Landed:
		return way != ofOtherReuse
	case handoff.Check:
		return way == byStranger || way == ofOtherReuse
	case handoff.Checked:
		return way != asOther
	}
	return way == byStranger || way == byOtherLife
}

// forgeries are tried beside every word that is under way.
func (e *emitter) forgeries(to int, id uint32) {
	l := e.w.letter(id)
	for way := range numWays {
		if twists(l, way) {
			e.fault("forged in way %d: "+l.name()+" to %d", way, to, func(x *world) { x.step(to, act{kind: forged, a: int(id), b: way}) })
		}
	}
}
