package steer

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/batonkv/baton/internal/say"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/planview"
)

// event is one line.
type event struct {
	Group string
	// What is the notice's kind; of discovery: here, gone, rank-up, rank-down, launched; of
	// a stream itself: lost, back.
	What   string
	Label  string
	Notice *control.Notice
	Rank   *plugins.Rank
	State  *plugins.Group // here, launched
	Err    error
	text   string // for people
}

// changes are the events between two views: those of groups in the order of the new one,
// then those of groups that left.
func changes(old, now map[string]plugins.Group, order []plugins.Group) (out []event) {
	for _, g := range order {
		if _, ok := now[g.Name]; !ok {
			continue
		}
		before, known := old[g.Name]
		if !known {
			out = append(out, event{Group: g.Name, What: "here", State: &g, text: describe(g)})
			continue
		}
		out = append(out, ranks(before, g)...)
		if before.Instance != g.Instance {
			what := "its engine detached"
			if g.Instance != 0 {
				what = "an engine attached: " + describe(g)
			}
			out = append(out, event{Group: g.Name, What: "launched", State: &g, text: what})
		}
	}
	var left []string
	for name := range old {
		if _, ok := now[name]; !ok {
			left = append(left, name)
		}
	}
	slices.Sort(left)
	for _, name := range left {
		out = append(out, event{Group: name, What: "gone", text: "no sidecar of it is registered"})
	}
	return out
}

// ranks are the events of a group's sidecars. One that is started again is one line.
func ranks(before, now plugins.Group) (out []event) {
	of := func(g plugins.Group, r plugins.Rank) *plugins.Rank {
		i := slices.IndexFunc(g.Ranks, func(o plugins.Rank) bool { return o.Rank == r.Rank })
		if i < 0 {
			return nil
		}
		return &g.Ranks[i]
	}
	for _, r := range before.Ranks {
		if of(now, r) == nil {
			out = append(out, event{Group: now.Name, What: "rank-down", Rank: &r, text: fmt.Sprintf("rank %d is not registered any more, pid %d", r.Rank, r.PID)})
		}
	}
	for _, r := range now.Ranks {
		at := fmt.Sprintf("%s, pid %d", say.Line(r.Addr, maxLabel), r.PID)
		switch was := of(before, r); {
		case was == nil:
			out = append(out, event{Group: now.Name, What: "rank-up", Rank: &r, text: fmt.Sprintf("rank %d: %s", r.Rank, at)})
		case was.Incarnation != r.Incarnation:
			out = append(out, event{Group: now.Name, What: "rank-up", Rank: &r, text: fmt.Sprintf("rank %d was started again: %s", r.Rank, at)})
		}
	}
	return out
}

// describe is a group in a line.
func describe(g plugins.Group) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if g.Role != "" {
		add("%s", g.Role)
	}
	switch {
	case g.Size == 0:
		add("%s, no engine yet", say.Count(int64(len(g.Ranks)), "sidecar"))
	case g.Complete:
		add("%s", say.Count(int64(g.Size), "rank"))
	default:
		add("not complete: %d of %s", len(g.Ranks), say.Count(int64(g.Size), "rank"))
	}
	if g.CapacityBlocks > 0 {
		add("%s or more", say.Count(int64(g.CapacityBlocks), "block"))
	}
	if g.CapacitySlots > 0 {
		add("%s or more", say.Count(int64(g.CapacitySlots), "slot"))
	}
	if g.Draining {
		add("draining")
	}
	return strings.Join(parts, ", ")
}

// ofNotice is what a leader told.
func ofNotice(group string, n control.Notice) event {
	e := event{Group: group, What: n.Kind.String(), Label: n.Label, Notice: &n, Err: n.Err}
	switch n.Kind {
	case control.Gap:
		e.text = "its leader is another process: what it told before may be missing here"
		if n.Lost > 0 {
			e.text = say.Count(int64(n.Lost), "notice") + " came and went unseen"
		}
	case control.Ready:
		e.text = "every rank is attached"
	case control.NotReady:
		e.text = "a rank was lost"
	case control.Announced:
		e.text = "will be exported"
	case control.Exported:
		if n.Manifest != nil {
			e.text = say.Count(int64(n.Manifest.Tokens), "token") + " held for an importer"
		}
	case control.Over:
		e.text = "its memory is given back"
	case control.Imported:
		e.text = imported(group, n)
	case control.Failed:
		e.text = failed(group, n)
	case control.Linked:
		e.text = linked(n)
	case control.Draining:
		e.text = "takes no new work"
	case control.Serving:
		e.text = "takes work again"
	}
	return e
}

func imported(group string, n control.Notice) string {
	p := n.Phases
	s := fmt.Sprintf("%s in %s", planview.Size(n.Bytes), ms(p.Open+p.Reserve+p.Move+p.Check+p.Done+p.Admit))
	if n.ID.Group != "" && n.ID.Group != group {
		s = "from " + n.ID.Group + ", " + s
	}
	s += fmt.Sprintf(" (open %s, reserve %s, move %s, check %s, done %s, admit %s)", num(p.Open), num(p.Reserve), num(p.Move), num(p.Check), num(p.Done), num(p.Admit))
	if n.Cached > 0 {
		s += ", " + say.Count(int64(n.Cached), "token") + " cached"
	}
	return s
}

// linked is a rank's way to another, and what that is worth.
func linked(n control.Notice) string {
	l := n.Link
	if l == nil {
		return ""
	}
	s := fmt.Sprintf("from %s/%d: %s", say.Line(l.Peer.Group, maxLabel), l.Peer.Rank, say.Line(l.Choice.Why, maxWhy))
	if l.Measured.Rate > 0 {
		s += fmt.Sprintf(", %.0f MB/s", l.Measured.Rate/1e6)
		if l.Expected > 0 {
			s += fmt.Sprintf(" of %.0f", l.Expected/1e6)
		}
	}
	if f := l.Finding; f.Cause != "" {
		s += fmt.Sprintf("; %s: %s: %s", f.Verdict, say.Line(f.Cause, maxWhy), say.Line(f.Fix, maxWhy))
	} else if f.Verdict != choice.Unmeasured {
		s += "; " + say.Line(string(f.Verdict), maxLabel)
	}
	return s
}

func failed(group string, n control.Notice) string {
	s := "no reason told"
	if n.Err != nil {
		s = say.Line(n.Err.Error(), maxWhy)
	}
	if n.ID.Group == "" || n.ID.Group == group {
		return s
	}
	if n.SourceSafe {
		return s + "; still held by " + n.ID.Group
	}
	return s + "; may be lost at " + n.ID.Group
}

func num(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1e3) }
func ms(d time.Duration) string  { return num(d) + " ms" }

// code is the name of an error that programs compare: its most special sentinel.
func code(err error) string {
	if err == nil {
		return ""
	}
	return errs.Name(err)
}

// why is an error's text without control characters.
func why(err error) string {
	if err == nil {
		return ""
	}
	return strings.TrimSpace(say.Line(err.Error(), maxWhy))
}

// cluster is what JSON tells of a group.
type cluster struct {
	Role     string `json:"role"`
	Size     int32  `json:"size"` // 0: no engine yet
	Ranks    int    `json:"ranks"`
	Complete bool   `json:"complete"`
	Draining bool   `json:"draining"`
	Blocks   int32  `json:"capacity_blocks"`
	Slots    int32  `json:"capacity_slots"`
}

// record is a line of JSON. 64-bit identities are hex strings.
type record struct {
	Time       time.Time          `json:"time"`
	Group      string             `json:"group,omitempty"`
	Event      string             `json:"event"`
	Label      string             `json:"label,omitempty"`
	Handoff    string             `json:"handoff,omitempty"`
	Seq        uint64             `json:"seq,omitempty"`
	Process    string             `json:"incarnation,omitempty"` // that numbered seq, or of the rank
	Lost       uint64             `json:"lost,omitempty"`
	Tokens     int32              `json:"tokens,omitempty"`
	Bytes      int64              `json:"bytes,omitempty"`
	Cached     int32              `json:"cached_tokens,omitempty"`
	Phases     map[string]float64 `json:"ms,omitempty"`
	Error      string             `json:"error,omitempty"`
	Why        string             `json:"why,omitempty"`
	SourceSafe *bool              `json:"source_safe,omitempty"`
	Rank       *int32             `json:"rank,omitempty"`
	PID        int32              `json:"pid,omitempty"`
	Addr       string             `json:"addr,omitempty"`
	State      *cluster           `json:"state,omitempty"`
	Link       *link              `json:"link,omitempty"`
}

// link is what JSON tells of a rank's way to another. Rates are in bytes a second.
type link struct {
	Reader    string  `json:"reader"`
	Peer      string  `json:"peer"`
	Transport string  `json:"transport"` // empty: none
	Code      string  `json:"code"`
	Why       string  `json:"why"`
	Fallback  bool    `json:"fallback"`
	Verdict   string  `json:"verdict"`
	Cause     string  `json:"cause,omitempty"`
	Fix       string  `json:"fix,omitempty"`
	Rate      float64 `json:"bytes_per_second,omitempty"`
	Expected  float64 `json:"expected_bytes_per_second,omitempty"`
}

func (e event) record(at time.Time) record {
	r := record{Time: at, Group: e.Group, Event: e.What, Label: e.Label, Error: code(e.Err), Why: why(e.Err)}
	if n := e.Notice; n != nil {
		r.Seq, r.Process, r.Lost = n.Seq, fmt.Sprintf("%016x", uint64(n.Incarnation)), n.Lost
		if n.ID != (handoff.ID{}) {
			r.Handoff = n.ID.String()
		}
		if n.Manifest != nil {
			r.Tokens = n.Manifest.Tokens
		}
		switch n.Kind {
		case control.Imported:
			f := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
			p := n.Phases
			r.Bytes, r.Cached = n.Bytes, n.Cached
			r.Phases = map[string]float64{"open": f(p.Open), "reserve": f(p.Reserve), "move": f(p.Move), "check": f(p.Check), "done": f(p.Done), "admit": f(p.Admit)}
		case control.Linked:
			if l := n.Link; l != nil {
				r.Link = &link{l.Reader.Name(), l.Peer.Name(), l.Choice.Transport, string(l.Choice.Code), l.Choice.Why, l.Choice.Code.Fallback(),
					string(l.Finding.Verdict), l.Finding.Cause, l.Finding.Fix, l.Measured.Rate, l.Expected}
			}
		case control.Failed:
			r.SourceSafe = &n.SourceSafe
		}
	}
	if k := e.Rank; k != nil {
		rank := int32(k.Rank)
		r.Rank, r.PID, r.Addr, r.Process = &rank, k.PID, k.Addr, fmt.Sprintf("%016x", uint64(k.Incarnation))
	}
	if g := e.State; g != nil {
		r.State = &cluster{string(g.Role), g.Size, len(g.Ranks), g.Complete, g.Draining, g.CapacityBlocks, g.CapacitySlots}
	}
	return r
}
