package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/batonkv/baton/sidecar/handoff"
)

// resetCall gives up what the group imports and what it holds. What may still be touched
// is not freed for it: the answer names it, it ends by itself, and asking again tells.
func (m *Machine) resetCall(e Reset) {
	if err := m.leading(); err != nil {
		m.do(Reply{Call: e.Call, Err: err})
		return
	}
	m.failUndecided(fmt.Errorf("%w: group %s is reset", handoff.ErrAborted, m.cfg.Self.Group))
	for _, id := range m.sortedSources() {
		m.endSource(id)
	}
	var err error
	if why := few(m.unquiet()); len(why) > 0 {
		err = fmt.Errorf("%w: %s: it ends by itself: reset again to see", handoff.ErrQuiet, strings.Join(why, "; "))
	}
	m.do(Reply{Call: e.Call, Err: err})
}

// maxReasons bounds how many reasons an answer names, and counts the others.
const maxReasons = 8

func few(why []string) []string {
	if n := len(why) - maxReasons; n > 0 {
		why = append(slices.Clip(why[:maxReasons]), fmt.Sprintf("and %d more", n))
	}
	return why
}

// unquiet says what of this group's memory a copy may write or an engine has not given
// back yet, and who is waited for.
func (m *Machine) unquiet() (why []string) {
	for _, i := range m.lead.imports {
		switch i.State() {
		case handoff.Draining:
			why = append(why, fmt.Sprintf("copies of import %q (%v) on %s", i.Import.Label, i.ID(), spoken(i.Busy())))
		case handoff.Admitting:
			why = append(why, fmt.Sprintf("import %q (%v) is admitted by decision %d", i.Import.Label, i.ID(), i.AdmitN))
		}
	}
	if n := m.openTickets(); n > 0 {
		why = append(why, several(n, "copy is", "copies are")+" open on rank 0")
	}
	if n := m.grants.Open(); n > 0 {
		why = append(why, several(n, "grant to pack is", "grants to pack are")+" open on rank 0")
	}
	switch l := m.lead.launch; {
	case l == nil:
		why = append(why, "not every rank is here, and what they hold is not known before")
	case m.lead.roster == nil:
		why = append(why, fmt.Sprintf("not every rank is here, and %s for that", several(len(l.owed), "decision waits", "decisions wait")))
	case len(l.seq.Behind()) > 0:
		why = append(why, theyHave(l.seq.Behind())+" not applied every decision")
	}
	return why
}
