package machine

import (
	"fmt"
	"slices"
	"time"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// taking is what the sequence of a launch says of the group's intake.
type taking struct {
	draining bool
	n        uint64 // the newest decision about it under a roster of this leader; 0: none
	acks     []bool // by rank: answered
	refused  string // the last refusal
}

// Drained is how far a group is on its way to a safe stop.
type Drained struct {
	Draining, Safe   bool
	Imports, Exports int32    // that have not ended; that are held
	Waits            []string // what else is waited for
}

// intake reports whether d is about the group's intake.
func intake(d handoff.Decision) bool { return d.Draining(true) == d.Draining(false) }

// drainCall stops the group's intake or resumes it, and says at once what is left.
func (m *Machine) drainCall(e Drain) {
	if err := m.leading(); err != nil {
		m.do(Reply{Call: e.Call, Err: err})
		return
	}
	m.intend(!e.Resume)
	if l := m.lead.launch; m.lead.roster != nil && l.taking.draining != m.lead.draining {
		m.decideIntake()
	}
	m.do(Reply{Call: e.Call, Drained: m.remains()})
}

// intend keeps what a control plane wants of the group's intake, over every launch, until
// this process ends. Its successor reads it in what the engines state.
func (m *Machine) intend(draining bool) {
	m.lead.intends = true
	m.setDraining(draining)
}

func (m *Machine) setDraining(draining bool) {
	if m.lead.draining == draining {
		return
	}
	m.lead.draining = draining
	notice, event := NoticeServing, events.Serving
	if draining {
		notice, event = NoticeDraining, events.Draining
	}
	m.do(Notify{Notice{Kind: notice}})
	m.publish(event, events.Event{})
	if m.lead.roster != nil {
		m.advertise()
	} else {
		m.do(Advertise{Draining: draining})
	}
}

// decideIntake says to every engine what the leader was told.
func (m *Machine) decideIntake() {
	a := handoff.ActionResumeIntake
	if m.lead.draining {
		a = handoff.ActionStopIntake
	}
	m.decideAll(handoff.Decision{Kind: handoff.Lifecycle, Action: a})
}

// tellIntake repeats it under a new roster: an answer may have been lost, and an engine that
// was launched anew takes work.
func (m *Machine) tellIntake() {
	if m.lead.draining || m.lead.launch.taking.draining {
		m.decideIntake()
	}
}

// startIntake takes the launch's own word: the leader's too, unless it was told otherwise.
func (m *Machine) startIntake(l *launch, ds handoff.Tail) {
	l.taking.draining = m.engine.attach.Draining
	for _, d := range ds {
		l.taking.draining = d.Draining(l.taking.draining)
	}
	if !m.lead.intends {
		m.setDraining(l.taking.draining)
	}
}

// decided notes a decision about the intake.
func (t *taking) decided(d handoff.Decision, ranks int) {
	if intake(d) {
		*t = taking{draining: d.Draining(false), n: d.N, acks: make([]bool, ranks)}
	}
}

func (m *Machine) intakeAcked(rank layout.Rank, a handoff.LifecycleAck) {
	t := &m.lead.launch.taking
	if t.n == 0 || t.n != a.N {
		return
	}
	if t.acks[rank] = true; a.Err != nil {
		t.refused = fmt.Sprintf("rank %d does not change its intake: %v", rank, a.Err)
	}
}

// remains is what a stop of the group would lose, and who is waited for.
func (m *Machine) remains() Drained {
	d := Drained{Draining: m.lead.draining}
	announced, last := 0, m.now
	for _, i := range m.lead.imports {
		if i.State() != handoff.Draining {
			d.Imports++
		}
	}
	for _, id := range m.lead.labels {
		if s := m.lead.sources[id]; s.State() == handoff.Announced {
			announced++
		} else {
			d.Exports++
			last = max(last, s.Deadline())
		}
	}
	var why []string
	if announced > 0 {
		why = append(why, several(announced, "announced hand-off is", "announced hand-offs are")+" not exported yet")
	}
	if d.Exports > 0 {
		why = append(why, fmt.Sprintf("%s held until imported or released, at most %v unless a lease is renewed",
			several(int(d.Exports), "export is", "exports are"), (last-m.now).Round(time.Second)))
	}
	if l := m.lead.launch; l != nil && d.Draining {
		if ranks := missing(l.taking.acks); len(ranks) > 0 {
			why = append(why, fmt.Sprintf("%s not answered %v", theyHave(ranks), handoff.ActionStopIntake))
		}
		if l.taking.refused != "" {
			why = append(why, l.taking.refused)
		}
	}
	d.Waits = few(slices.Concat(why, m.unquiet()))
	d.Safe = d.Draining && d.Imports == 0 && len(d.Waits) == 0
	return d
}
