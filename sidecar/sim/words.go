package sim

import (
	"fmt"
	"strings"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// words is what happens to a sidecar.
func words(e machine.Event) string {
	switch e := e.(type) {
	case machine.FromEngine:
		return "engine says " + short(e.Msg)
	case machine.FromPeer:
		return fmt.Sprintf("%v says %s", e.Peer, short(e.Msg))
	case machine.Found:
		var s []string
		for _, r := range e.Records {
			s = append(s, fmt.Sprintf("%s/%d@%x", r.Group, r.Rank, r.Incarnation))
		}
		return "discovery shows " + strings.Join(s, " ")
	case machine.Import:
		return fmt.Sprintf("is asked to import %v as %q (call %d)", e.Import.Manifest.ID, e.Import.Label, e.Call)
	}
	return short(e)
}

// say tells an effect.
func (w *world) say(f machine.Effect) {
	switch f := f.(type) {
	case machine.Publish, machine.Advertise:
	case machine.ToPeer:
		w.tell("    -> %v: %s", f.Peer, short(f.Msg))
	case machine.ToEngine:
		w.tell("    -> engine: %s", short(f.Msg))
	case machine.Notify:
		w.tell("    -> watchers: kind %d of %v %q err %v", f.Notice.Kind, f.Notice.ID, f.Notice.Label, f.Notice.Err)
	case machine.Pull:
		w.tell("    -> mover: copy %d of %v, blocks %v slot %d into %v slot %d, tokens %v", f.Ticket, f.Peer, f.Job.SrcBlocks, f.Job.SrcSlot,
			f.Job.DstBlocks, f.Job.DstSlot, f.Job.Tokens)
	default:
		w.tell("    -> %s", short(f))
	}
}

// short is a message in one line, without what is long and tells little.
func short(m any) string {
	switch m := m.(type) {
	case handoff.Attach:
		return fmt.Sprintf("Attach{instance %x held %d applied %d pins %v imports %v decisions %d}", uint64(m.Instance), m.Held, m.Applied, m.Pins, m.Imports, len(m.Decisions))
	case handoff.Join:
		return fmt.Sprintf("Join{instance %x held %d of %d applied %d pins %v}", uint64(m.Attach.Instance), m.Held, m.Attach.Held, m.Applied, m.Attach.Pins)
	case handoff.Roster:
		return fmt.Sprintf("Roster{%v}", m.Members)
	case handoff.Geometry:
		return fmt.Sprintf("Geometry{of %s}", m.Group)
	case handoff.Decision:
		return fmt.Sprintf("Decision{%d %v of %d: %v attempt %d %q}", m.N, m.Kind, m.Of, m.ID, m.Attempt, m.Label)
	case handoff.Exported:
		return fmt.Sprintf("Exported{%q as %v}", m.Label, m.Manifest.ID)
	case handoff.Opened:
		return fmt.Sprintf("Opened{%v attempt %d: %v %s %v}", m.ID, m.Attempt, m.Status, m.Why, m.Extent)
	case handoff.Open:
		return fmt.Sprintf("Open{%v attempt %d}", m.ID, m.Attempt)
	case handoff.Done:
		return fmt.Sprintf("Done{%v attempt %d}", m.ID, m.Attempt)
	case handoff.DoneAck:
		return fmt.Sprintf("DoneAck{%v attempt %d: %v}", m.ID, m.Attempt, m.Status)
	case handoff.Withdraw:
		return fmt.Sprintf("Withdraw{%v attempt %d}", m.ID, m.Attempt)
	case handoff.Check:
		return fmt.Sprintf("Check{%v attempt %d pin %d}", m.ID, m.Attempt, m.Pin)
	case handoff.Checked:
		return fmt.Sprintf("Checked{%v attempt %d pin %d: held %v}", m.Check.ID, m.Check.Attempt, m.Check.Pin, m.Held)
	case handoff.Reserved:
		return fmt.Sprintf("Reserved{%d full %v blocks %v slot %d cached %d}", m.N, m.Full, m.Blocks, m.Slot, m.Cached)
	case handoff.RankReserved:
		return fmt.Sprintf("RankReserved{%d full %v cached %d}", m.Reserved.N, m.Reserved.Full, m.Reserved.Cached)
	case handoff.Export:
		return fmt.Sprintf("Export{%q blocks %v slot %d tokens %d copies %d hold %v after %d parts}", m.Label, m.Blocks, m.Slot, m.Tokens, m.Copies, m.MaxHold, m.Parts)
	case handoff.ExportPart:
		return fmt.Sprintf("ExportPart{%q part %d blocks %v of %d tokens reach %v fence %d}", m.Label, m.Part, m.Blocks, m.Tokens, m.Reach, m.Fence)
	case handoff.Part:
		return fmt.Sprintf("Part{%v attempt %d of %d: %v}", m.ID, m.Attempt, m.Reserve, m.Extent)
	case handoff.Import:
		return fmt.Sprintf("Import{%v as %q}", m.Manifest.ID, m.Label)
	}
	s := fmt.Sprintf("%T%+v", m, m)
	if _, rest, ok := strings.Cut(s, "."); ok {
		s = rest
	}
	return s[:min(len(s), 200)]
}
