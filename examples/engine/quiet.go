package engine

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/sidecar/handoff"
)

// A reset gives all memory back, a switch takes another role. Both need an engine that is
// quiet: nobody else may touch its memory any more. An export may be read until its Free,
// an import may be written until its ReleaseQuarantine, so neither is forced: the
// engine takes nothing new, waits as long as its caller does, and says what it waits for
// if that was too long.

var (
	// ErrTouched: somebody may still read or write memory of the engine: nothing was freed.
	ErrTouched = errors.New("engine: memory may still be touched")
	// ErrReset: the request was ended by a reset.
	ErrReset = errors.New("engine: reset")
)

// settle lets a reset or a switch in.
func (s *scheduler) settle(t *task) {
	if s.settling != nil {
		t.events <- front.Event{Err: fmt.Errorf("%w: a %s is under way", front.ErrBusy, s.settling.req.Mode)}
		return
	}
	if t.req.Mode == front.Switch {
		c := s.r.cfg
		if c.Role = Role(t.req.Role); c.checkRole() != nil {
			t.events <- front.Event{Err: c.checkRole()}
			return
		}
	}
	s.settling = t
	s.r.tellShut()
	for _, o := range slices.Clone(s.tasks) {
		if s.resetting() {
			s.fail(o, ErrReset)
		}
	}
}

// resetting says that nobody is to be served until all memory is given back.
func (s *scheduler) resetting() bool {
	return s.settling != nil && s.settling.req.Mode == front.Reset
}

// intake says why a request is not taken while the engine is to be quiet. Whoever adopts
// what was imported before a switch is let in: it helps.
func (s *scheduler) intake(m front.Mode) error {
	if t := s.settling; t != nil && (m != front.Adopt || s.resetting()) {
		return fmt.Errorf("%w: a %s is under way", handoff.ErrDraining, t.req.Mode)
	}
	return nil
}

// unsettle gives up with what stands in the way.
func (s *scheduler) unsettle(err error) {
	if touched := s.touched(); touched != nil && !errors.Is(err, ErrEnded) {
		err = fmt.Errorf("%w: %w", err, touched)
	}
	s.answer(front.Event{Err: err})
}

// answer ends the reset or the switch that is under way: requests are taken again.
func (s *scheduler) answer(e front.Event) {
	t := s.settling
	s.settling = nil
	s.r.tellShut()
	t.events <- e
}

// touched is what keeps the engine from being quiet.
func (s *scheduler) touched() error {
	if n := len(s.tasks); n > 0 {
		return fmt.Errorf("%w: %d requests run", ErrTouched, n)
	}
	return s.r.quiet()
}

// settled plans what was wished for, once the engine is quiet.
func (s *scheduler) settled() {
	t := s.settling
	if t == nil || s.touched() != nil || !s.st.empty() {
		return
	}
	if t.req.Mode == front.Reset {
		s.st.Reset = true
		return
	}
	var b [8]byte
	rand.Read(b[:])
	s.st.Turn = &turnOp{Role: Role(t.req.Role), Instance: handoff.Instance(max(binary.LittleEndian.Uint64(b[:]), 1))}
}

// wasReset tells the caller.
func (s *scheduler) wasReset() {
	s.answer(front.Event{Result: &front.Result{Reason: string(front.Reset), Pool: s.stats()}})
}

// leave has all ranks turn, and tells the caller.
func (s *scheduler) leave() error {
	b, err := json.Marshal(s.st)
	if err != nil {
		return err
	}
	if err := s.r.group.Broadcast(b); err != nil {
		return err
	}
	turn := *s.st.Turn
	s.st, s.through = step{}, 0
	clear(s.letGo)
	clear(s.away)
	clear(s.resumes)
	err = s.r.turn(turn)
	s.answer(front.Event{Result: &front.Result{Reason: string(turn.Role)}})
	return err
}

// quiet says whose memory may still be touched, nil if nobody's.
func (r *Rank) quiet() error {
	var why []string
	for _, label := range slices.Sorted(maps.Keys(r.exports)) {
		why = append(why, fmt.Sprintf("export %q is held for importers", label))
	}
	for _, n := range slices.Sorted(maps.Keys(r.imports)) {
		why = append(why, fmt.Sprintf("import %q may still be written", r.imports[n].label))
	}
	if n := len(r.requests); n > 0 {
		why = append(why, fmt.Sprintf("%d requests run", n))
	}
	const most = 8
	if n := len(why); n > most {
		why = append(why[:most], fmt.Sprintf("and %d more", n-most))
	}
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrTouched, strings.Join(why, ", "))
}

// reset forgets all that the memory holds.
func (r *Rank) reset() error {
	if err := r.quiet(); err != nil {
		return fmt.Errorf("%w: reset: %w", ErrDiverged, err)
	}
	r.pool.Forget()
	r.forgot()
	if r.cfg.Poison {
		for b := range r.cfg.Blocks {
			r.mem.PoisonBlock(b)
		}
		for slot := range r.cfg.Slots {
			r.mem.PoisonSlot(slot)
		}
	}
	return nil
}
