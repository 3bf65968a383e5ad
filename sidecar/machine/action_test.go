package machine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
)

// act asks a group's leader for an action.
func (w *world) act(group string, a handoff.Action) Call {
	w.lastC++
	w.at(group, 0).step(Lifecycle{Call: w.lastC, Action: a})
	return w.lastC
}

// Every engine carries an action out at the same decision, and then the caller hears.
func TestActions(t *testing.T) {
	w := pair(t, 2, 1)
	for a := handoff.ActionPause; a.Known(); a++ {
		c := w.act("p", a)
		if _, ok := w.calls[c]; ok {
			t.Fatalf("%v is answered before an engine heard it", a)
		}
		w.run()
		if err := w.ended(c).Err; err != nil {
			t.Errorf("%v: %v", a, err)
		}
	}
	e0, e1 := w.at("p", 0).eng, w.at("p", 1).eng
	for i, d := range e0.acts {
		if d.Action != handoff.Action(i+1) || e1.acts[i].N != d.N || e1.acts[i].Action != d.Action {
			t.Errorf("rank 0 took %v at %d, rank 1 %v at %d", d.Action, d.N, e1.acts[i].Action, e1.acts[i].N)
		}
	}
	if len(e0.acts) != 9 || len(w.at("d", 0).eng.acts) != 0 {
		t.Errorf("%d actions here, %d elsewhere", len(e0.acts), len(w.at("d", 0).eng.acts))
	}
	w.settled(t)
}

func TestActionsAreChecked(t *testing.T) {
	w := pair(t, 2, 1)
	for _, a := range []handoff.Action{0, 10, 255} {
		if err := w.ended(w.act("p", a)).Err; !errors.Is(err, handoff.ErrBound) {
			t.Errorf("action %d: %v", a, err)
		}
	}
	w.at("p", 1).step(Lifecycle{Call: 99, Action: handoff.ActionPause})
	if err := w.ended(99).Err; !errors.Is(err, handoff.ErrNotReady) {
		t.Errorf("rank 1: %v", err)
	}
	w.at("p", 1).eng.mute = true
	for range maxCalls {
		w.act("p", handoff.ActionPause)
		w.run()
	}
	if err := w.ended(w.act("p", handoff.ActionPause)).Err; !errors.Is(err, handoff.ErrCapacity) {
		t.Errorf("one too many: %v", err)
	}
	if err := w.ended(w.setWeights("p", 0, 1)).Err; !errors.Is(err, handoff.ErrCapacity) {
		t.Errorf("one too many: %v", err)
	}
	w.at("p", 1).step(EngineDown{w.at("p", 1).eng.session})
	w.run()
	if err := w.ended(w.act("p", handoff.ActionPause)).Err; !errors.Is(err, handoff.ErrNotReady) {
		t.Errorf("without rank 1: %v", err)
	}
}

// The first refusal is the answer, with its sentinel, whatever the others say.
func TestARefusedAction(t *testing.T) {
	w := pair(t, 2, 1)
	w.at("p", 1).eng.refuses = handoff.ErrRole
	c := w.act("p", handoff.ActionSuspend)
	w.run()
	if err := w.ended(c).Err; !errors.Is(err, handoff.ErrRole) || errors.Is(err, handoff.ErrInDoubt) || !strings.Contains(err.Error(), "rank 1 of group p refuses suspend") {
		t.Error(err)
	}
	w.settled(t)
}

// An engine that does not answer leaves its caller in doubt, in time; an answer that comes
// later answers nobody.
func TestNoAnswerInTime(t *testing.T) {
	w := pair(t, 2, 1)
	p1 := w.at("p", 1)
	p1.eng.mute = true
	c := w.act("p", handoff.ActionPause)
	w.run()
	w.advance(p1.m.cfg.Patience - 1)
	if _, ok := w.calls[c]; ok {
		t.Fatal("answered before its time")
	}
	w.advance(1)
	if err := w.ended(c).Err; !errors.Is(err, handoff.ErrInDoubt) || !strings.Contains(err.Error(), "no answer of rank 1 came") {
		t.Error(err)
	}
	delete(w.calls, c)
	p1.eng.say(p1, handoff.LifecycleAck{N: 1})
	w.run()
	if len(w.calls) > 0 {
		t.Errorf("answered twice: %+v", w.calls)
	}
}

// An engine answers what it was sent: anything else ends its session. What it was sent and
// is no action, or is answered again, answers nobody.
func TestForgedAnswers(t *testing.T) {
	w := pair(t, 2, 1)
	for n := range 2 {
		w.at("p", n).eng.mute = true
	}
	c := w.act("p", handoff.ActionPause)
	w.run()
	p0, p1 := w.at("p", 0), w.at("p", 1)
	p0.eng.say(p0, handoff.LifecycleAck{N: 1})
	p0.eng.say(p0, handoff.LifecycleAck{N: 1})
	w.at("p", 0).step(FromPeer{w.at("d", 0).self, handoff.RankAcked{Ack: handoff.LifecycleAck{N: 1}}})
	w.run()
	if _, ok := w.calls[c]; ok {
		t.Fatal("one rank answered for two")
	}
	for range 3 * maxCalls {
		p1.eng.say(p1, handoff.LifecycleAck{N: 1, Err: errors.New("no")})
	}
	if n := len(p1.m.engine.acks); n > maxCalls {
		t.Errorf("%d answers are kept", n)
	}
	for _, n := range []uint64{0, 2} {
		w := pair(t, 1, 1)
		w.act("p", handoff.ActionPause)
		w.run()
		p := w.at("p", 0)
		if p.eng.say(p, handoff.LifecycleAck{N: n}); len(p.closed) != 1 || !errors.Is(p.closed[0], handoff.ErrEngine) {
			t.Errorf("answer to decision %d: %v", n, p.closed)
		}
	}
}

// An answer that was lost with a session within the group comes with the next one.
func TestAnswersAreRepeated(t *testing.T) {
	w := pair(t, 2, 1)
	w.drop = dropType[handoff.RankAcked]
	c := w.act("p", handoff.ActionPause)
	w.run()
	w.drop = nil
	if _, ok := w.calls[c]; ok {
		t.Fatal("answered by nobody")
	}
	w.cut(w.at("p", 1).self, w.at("p", 0).self)
	w.back()
	if err := w.ended(c).Err; err != nil {
		t.Error(err)
	}
}

// The end of rank 0's engine leaves callers in doubt at once. An engine that was told to
// stop, and leaves, has stopped.
func TestActionsWhenEnginesLeave(t *testing.T) {
	for _, c := range []struct {
		name   string
		action handoff.Action
		mute   []int // do not answer
		leave  []int // in this order
		err    error
		open   bool // not answered before its time
	}{
		{"rank 0, paused", handoff.ActionPause, []int{1}, []int{0}, handoff.ErrInDoubt, false},
		{"rank 1, paused", handoff.ActionPause, []int{1}, []int{1}, handoff.ErrInDoubt, true},
		{"rank 0 stopped", handoff.ActionStop, []int{1}, []int{0}, nil, false},
		{"rank 1 stopped", handoff.ActionStop, []int{1}, []int{1}, nil, false},
		{"rank 0 broke down", handoff.ActionStop, []int{0, 1}, []int{0}, handoff.ErrInDoubt, false},
		{"both stopped", handoff.ActionStop, []int{0, 1}, []int{1, 0}, handoff.ErrInDoubt, false},
	} {
		w := pair(t, 2, 1)
		for _, r := range c.mute {
			w.at("p", r).eng.mute = true
		}
		call := w.act("p", c.action)
		w.run()
		for _, r := range c.leave {
			w.at("p", r).step(EngineDown{w.at("p", r).eng.session})
			w.run()
		}
		if _, ok := w.calls[call]; ok == c.open {
			t.Errorf("%s: answered %v", c.name, ok)
		}
		w.advance(w.at("p", 0).m.cfg.Patience)
		if err := w.ended(call).Err; !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// What rank 1 does not hold it is not said to have done by leaving.
func TestStopThatNeverArrived(t *testing.T) {
	w := pair(t, 2, 1)
	w.drop = func(_, to handoff.Member, msg handoff.PeerMessage) bool {
		_, ok := msg.(handoff.Decision)
		return ok && to.Rank == 1
	}
	c := w.act("p", handoff.ActionStop)
	w.run()
	w.drop = nil
	w.at("p", 1).step(EngineDown{w.at("p", 1).eng.session})
	w.run()
	if _, ok := w.calls[c]; ok {
		t.Fatal("answered")
	}
	one := w.at("p", 1)
	one.eng.session, one.eng.mute = 0, true
	one.reattach()
	w.run()
	if !slices.Contains(one.eng.story, "stop") || !slices.Contains(w.at("p", 0).eng.story, "stop") {
		t.Errorf("%q, %q", one.eng.story, w.at("p", 0).eng.story)
	}
	if _, ok := w.calls[c]; ok {
		t.Fatal("answered for rank 1, which has not")
	}
	one.eng.say(one, handoff.LifecycleAck{N: 1})
	w.run()
	if err := w.ended(c).Err; err != nil {
		t.Error(err)
	}
}
