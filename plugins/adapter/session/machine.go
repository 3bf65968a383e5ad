package session

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Machine is one session. Its owner calls Step from one goroutine.
type Machine struct {
	cfg    Config
	now    Now
	out    []Effect
	status Status
	told   Status // of the last Tell
	await  await
	until  Now  // the deadline of what is awaited, or when an idle session goes on
	stop   bool // Stop was said
	life   Life
	fails  int // lives that failed in a row

	// Of the present life.
	synced  bool
	since   Now // when it was synced
	collect bool
	sent    adapter.State // what the adapter was told
	looked  Now           // when the state was looked at
	called  Now           // when the last Sync or Notify began
	dirty   bool          // something happened since the state was looked at

	notices []control.Notice // that are wanted and were not told
	weight  int              // of them
	lost    uint64
	gap     bool // notices is not whole
}

// await is which answer is open. There is one at most.
type await uint8

const (
	nothing await = iota
	opened
	answer
	state
	closed
)

// New makes a machine that waits for its first Tick.
func New(cfg Config) *Machine { return &Machine{cfg: cfg, status: Status{Stage: Waiting}} }

// Status is the present one.
func (m *Machine) Status() Status { return m.status }

// Next is when the machine wants a Tick; false: at no time.
func (m *Machine) Next() (Now, bool) {
	if m.await == state || m.await == closed || m.status.Stage == Refused || m.status.Stage == Stopped {
		return 0, false
	}
	return m.until, true
}

// Step takes an event and returns what is to be done, in order.
func (m *Machine) Step(now Now, e Event) []Effect {
	m.now, m.out = max(now, m.now), nil
	m.take(e)
	if at, ok := m.Next(); ok && at <= m.now {
		m.due()
	}
	if changed(m.told, m.status) {
		m.told = m.status
		m.do(Tell{m.status})
	}
	return m.out
}

func changed(a, b Status) bool {
	return a.Stage != b.Stage || a.Restarts != b.Restarts || a.Coalesced != b.Coalesced || a.Lost != b.Lost || a.Err != b.Err
}

// take dispatches; what answers nothing that is open is dropped.
func (m *Machine) take(e Event) {
	switch e := e.(type) {
	case Opened:
		if e.Life == m.life && m.await == opened {
			m.begin(e.Err)
		}
	case Answered:
		if e.Life == m.life && m.await == answer {
			m.answered(e)
		}
	case Looked:
		if e.Life == m.life && m.await == state {
			m.saw(e)
		}
	case Ended:
		if e.Life == m.life && m.alive() {
			m.fail(fmt.Errorf("%w: %v", handoff.ErrHost, e.Err))
		}
	case Closed:
		if e.Life == m.life && m.await == closed {
			m.over()
		}
	case Noticed:
		m.noticed(e.Notice)
	case Stop:
		m.stopped()
	}
}

// alive says whether there is a life that may end unasked.
func (m *Machine) alive() bool { return m.status.Stage >= Opening && m.status.Stage <= Draining }

func (m *Machine) do(e Effect) { m.out = append(m.out, e) }

// enter begins a stage in which what is awaited for d at most.
func (m *Machine) enter(s Stage, what await, d time.Duration) {
	m.status.Stage, m.await, m.until = s, what, m.now+d
}

// call begins a call.
func (m *Machine) call(s Stage, within time.Duration, c Call) {
	c.Life = m.life
	m.enter(s, answer, within)
	m.do(c)
}

// due does what time asks for.
func (m *Machine) due() {
	switch {
	case m.status.Stage == Waiting:
		m.life++
		m.synced, m.collect, m.dirty, m.sent = false, false, false, adapter.State{}
		m.forget()
		m.enter(Opening, opened, m.cfg.Start)
		m.do(Open{m.life})
	case m.await == nothing:
		m.look()
	default:
		m.fail(fmt.Errorf("%w: %v is not answered in time", handoff.ErrDeadline, m.status.Stage))
	}
}

// begin goes on after Open.
func (m *Machine) begin(err error) {
	if err != nil {
		m.fail(fmt.Errorf("%v: %w", m.status.Stage, err))
		return
	}
	m.call(Registering, m.cfg.Call, Call{Verb: adapter.Register})
}

// answered goes on after a call.
func (m *Machine) answered(e Answered) {
	s := m.status.Stage
	if e.Err != nil {
		m.fail(fmt.Errorf("%v: %w", s, e.Err))
		return
	}
	switch s {
	case Registering:
		m.status.Info = e.Info
		m.call(Configuring, m.cfg.Call, Call{Verb: adapter.Configure, Section: m.cfg.Section})
	case Configuring:
		m.status.Stage, m.collect = Syncing, true
		m.look()
	case Syncing:
		m.synced, m.since, m.status.Err = true, m.now, nil
		m.rest()
	case Notifying:
		m.rest()
	case Draining:
		m.end(false)
	}
}

// look asks for the newest state.
func (m *Machine) look() {
	m.await, m.looked, m.dirty = state, m.now, false
	m.do(Look{m.life})
}

// saw tells the adapter what is new.
func (m *Machine) saw(e Looked) {
	if e.Err != nil { // not the adapter's fault
		m.enter(m.status.Stage, nothing, m.cfg.Refresh)
		return
	}
	if !m.synced {
		m.sent, m.called = e.State, m.now
		m.call(Syncing, m.cfg.Call, Call{Verb: adapter.Sync, State: e.State})
		return
	}
	u := m.sent.Diff(e.State)
	u.Notices = m.notices
	if m.gap {
		u = adapter.Update{Whole: &e.State, Lost: m.lost}
		m.status.Coalesced++
		m.status.Lost += m.lost
	}
	if m.sent.Same(u) && m.now < m.called+m.cfg.Beat {
		m.rest()
		return
	}
	m.forget()
	m.sent, m.called = e.State, m.now
	m.call(Notifying, m.cfg.Call, Call{Verb: adapter.Notify, Update: u})
}

// rest waits until there may be something to tell.
func (m *Machine) rest() {
	if m.stop {
		m.call(Draining, m.cfg.Drain, Call{Verb: adapter.Drain})
		return
	}
	m.status.Stage, m.await, m.until = Serving, nothing, m.looked+m.cfg.Refresh
	m.hurry()
}

// hurry brings the next look forward when something happened.
func (m *Machine) hurry() {
	if m.dirty && m.await == nothing && m.status.Stage == Serving {
		m.until = min(m.until, max(m.now, m.called+m.cfg.Pace))
	}
}

// noticed keeps a notice for a life that will hear it.
func (m *Machine) noticed(n control.Notice) {
	if !m.collect {
		return // what it did is in the state that Sync tells
	}
	m.dirty = true
	switch {
	case n.Kind == control.Gap:
		m.lose(n.Lost)
	case !slices.Contains(m.status.Info.Wants, n.Kind):
	case m.gap || len(m.notices) == adapter.MaxNotices || m.weight+adapter.Weight(n) > adapter.MaxBytes:
		m.lose(1)
	default:
		m.notices = append(m.notices, n)
		m.weight += adapter.Weight(n)
	}
	m.hurry()
}

// forget begins the list of notices anew.
func (m *Machine) forget() { m.notices, m.weight, m.lost, m.gap = nil, 0, 0, false }

// lose gives up the list of notices: the whole state takes its place.
func (m *Machine) lose(n uint64) {
	n += m.lost + uint64(len(m.notices))
	m.forget()
	m.lost, m.gap = n, true
}

// fail ends a life that went wrong.
func (m *Machine) fail(err error) {
	if m.synced && m.now-m.since >= m.cfg.Most {
		m.fails = 0
	}
	m.fails++
	m.status.Err = err
	m.status.Restarts++
	m.end(true)
}

func (m *Machine) end(hard bool) {
	m.collect = false
	m.forget()
	m.enter(Ending, closed, 0)
	m.do(Close{Life: m.life, Hard: hard})
}

// over goes on when nothing of a life is left.
func (m *Machine) over() {
	switch {
	case m.stop:
		m.enter(Stopped, nothing, 0)
	case errors.Is(m.status.Err, handoff.ErrSection):
		m.enter(Refused, nothing, 0)
	default:
		m.enter(Waiting, nothing, m.pause())
	}
}

// pause is how long to wait before the next life: between half of the doubled time and
// the whole.
func (m *Machine) pause() time.Duration {
	d := m.cfg.Most
	if shift := m.fails - 1; shift < 20 {
		d = min(m.cfg.Least<<shift, m.cfg.Most)
	}
	return d/2 + time.Duration(m.cfg.Mint()%uint64(d/2+1))
}

// stopped begins the end. What runs and was told of the group is drained, so a Sync or
// Notify is awaited first; whoever heard nothing is only closed.
func (m *Machine) stopped() {
	if m.stop {
		return
	}
	m.stop = true
	switch s := m.status.Stage; {
	case s == Waiting || s == Refused:
		m.enter(Stopped, nothing, 0)
	case s == Ending || m.await == answer && (s == Syncing || s == Notifying):
	case m.synced:
		m.rest()
	default:
		m.end(m.await != state && m.await != nothing)
	}
}
