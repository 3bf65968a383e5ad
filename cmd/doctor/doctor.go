// Package doctor shows what sidecars say of the links between ranks, what is wrong with
// them, and what to do.
package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/batonkv/baton/internal/say"
	"github.com/batonkv/baton/plugins/route"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
)

// ErrUnwell says that a link is degraded, broken or was not measured though it was to be, that
// a sidecar does not answer, or that a group is not ready.
var ErrUnwell = errors.New("doctor: not all is well")

// Report is what the sidecars of a cluster said.
type Report struct {
	Asked   []route.Asked
	Readers int  // ranks that may read
	Known   bool // nothing was to be measured
}

// links are those of all answers, in their order.
func (r Report) links() (out []handoff.Link) {
	for _, a := range r.Asked {
		out = append(out, a.Links.Links...)
	}
	return out
}

// Verdict is nil, or ErrUnwell with the counts.
func (r Report) Verdict() error {
	var bad []string
	n, silent := map[choice.Verdict]int{}, r.silent()
	for _, l := range r.links() {
		if r.wrong(l) {
			n[l.Finding.Verdict]++
		}
	}
	for _, v := range []choice.Verdict{choice.Broken, choice.Degraded, choice.Unmeasured} {
		if n[v] > 0 {
			bad = append(bad, fmt.Sprintf("%s %s", say.Count(n[v], "link"), v))
		}
	}
	if silent > 0 {
		bad = append(bad, say.Count(silent, "sidecar")+" without an answer")
	}
	if n := len(r.lacking()); n > 0 {
		bad = append(bad, say.Count(n, "group")+" not ready")
	}
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrUnwell, strings.Join(bad, ", "))
}

// wrong reports whether a link is degraded or broken, or has a cause for not being measured.
func (r Report) wrong(l handoff.Link) bool {
	switch l.Finding.Verdict {
	case choice.Degraded, choice.Broken:
		return true
	case choice.Unmeasured:
		return !r.Known && l.Finding.Cause != ""
	}
	return false
}

// lacking are the groups in which no leader says that every rank is attached, in order.
func (r Report) lacking() (out []string) {
	whole := map[string]bool{}
	for _, a := range r.Asked {
		whole[a.Record.Group] = whole[a.Record.Group] || a.Record.Ranks > 0 || a.Gone
	}
	for g, ok := range whole {
		if !ok {
			out = append(out, g)
		}
	}
	slices.Sort(out)
	return out
}

// silent counts the sidecars that did not answer and are there still.
func (r Report) silent() (n int) {
	for _, a := range r.Asked {
		if a.Err != nil && !a.Gone {
			n++
		}
	}
	return n
}

// Text writes a table, and under it each reason once, what is wrong and what to do.
func (r Report) Text(out io.Writer) error {
	ls := r.links()
	if len(ls) > 0 {
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "READER\tFROM\tTRANSPORT\tMEASURED\tEXPECTED\tONE READ\tAGE\tVERDICT")
		for _, l := range ls {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", clean(l.Reader.Name()), clean(l.Peer.Name()), transport(l.Choice), rate(l.Measured.Rate),
				rate(l.Expected), latency(l.Measured.Latency), age(l), clean(string(l.Finding.Verdict)))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	var b strings.Builder
	r.reasons(&b)
	r.findings(&b)
	r.summary(&b)
	_, err := io.WriteString(out, b.String())
	return err
}

// reasons says why each transport was chosen, for all pairs of a reason at once.
func (r Report) reasons(b *strings.Builder) {
	var whys []string
	pairs := map[string][]string{}
	for _, l := range r.links() {
		if why := clean(l.Choice.Why); why != "" {
			if pairs[why] == nil {
				whys = append(whys, why)
			}
			pairs[why] = append(pairs[why], pair(l))
		}
	}
	if len(whys) > 0 {
		b.WriteString("\nwhy\n")
	}
	for _, why := range whys {
		fmt.Fprintf(b, "  %s\n    %s\n", why, some(pairs[why]))
	}
}

// pair names a link's ends.
func pair(l handoff.Link) string { return clean(l.Reader.Name() + " from " + l.Peer.Name()) }

// some are the first of many.
func some(s []string) string {
	if len(s) > 8 {
		return strings.Join(s[:8], ", ") + fmt.Sprintf(", and %d more", len(s)-8)
	}
	return strings.Join(s, ", ")
}

// findings says what is wrong, and what to do.
func (r Report) findings(b *strings.Builder) {
	head := "\nwrong\n"
	for _, l := range r.links() {
		f := l.Finding
		if !r.wrong(l) {
			continue
		}
		fmt.Fprintf(b, "%s  %s is %s: %s\n", head, pair(l), f.Verdict, clean(f.Cause))
		if f.Fix != "" {
			fmt.Fprintf(b, "    %s\n", clean(f.Fix))
		}
		head = ""
	}
	for _, a := range r.Asked {
		if a.Err != nil && !a.Gone {
			fmt.Fprintf(b, "%s  %s/%d at %s does not answer: %s\n", head, a.Record.Group, a.Record.Rank, clean(a.Record.Addr), clean(a.Err.Error()))
			head = ""
		}
	}
	for _, g := range r.lacking() {
		fmt.Fprintf(b, "%s  group %s is not ready: not every rank has attached, all under one instance\n    /healthz and the log of its rank 0 name those that lack\n", head, clean(g))
		head = ""
	}
}

func (r Report) summary(b *strings.Builder) {
	ls := r.links()
	more := 0
	for _, a := range r.Asked {
		more += int(a.Links.More)
	}
	b.WriteString("\n")
	switch {
	case len(r.Asked) == 0:
		b.WriteString("no sidecar is registered in this cluster: start baton sidecar beside each rank of the engines\n")
	case len(ls) == 0 && r.Readers == 0:
		b.WriteString("no rank here may read: all groups prefill; start one whose role is decode or both\n")
	case len(ls) == 0 && r.silent() > 0:
		b.WriteString("no link is known: what the sidecars without an answer read, and who reads from them, is not seen\n")
	case len(ls) == 0 && r.groups() > 1:
		b.WriteString("no link is known yet: a sidecar that has just started does not see the others at once; ask again\n")
	case len(ls) == 0:
		b.WriteString("no rank here may be read by another: want two groups, one that prefills and one that decodes\n")
	default:
		n := map[choice.Verdict]int{}
		for _, l := range ls {
			n[l.Finding.Verdict]++
		}
		parts := []string{}
		for _, v := range []choice.Verdict{choice.Good, choice.Unmeasured, choice.Degraded, choice.Broken} {
			if n[v] > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", n[v], v))
			}
		}
		fmt.Fprintf(b, "%s: %s\n", say.Count(len(ls), "link"), strings.Join(parts, ", "))
	}
	for _, a := range r.Asked {
		if a.Gone {
			fmt.Fprintf(b, "%s/%d at %s did not answer and has left discovery meanwhile: it is gone, or it hangs\n", a.Record.Group, a.Record.Rank, clean(a.Record.Addr))
		}
	}
	if more > 0 {
		fmt.Fprintf(b, "%s were left out: ask fewer groups\n", say.Count(more, "link"))
	}
}

// groups counts those that were asked.
func (r Report) groups() int {
	seen := map[string]bool{}
	for _, a := range r.Asked {
		seen[a.Record.Group] = true
	}
	return len(seen)
}

func transport(c choice.Choice) string {
	switch {
	case c.Transport == "":
		return "none"
	case c.Way == "" || c.Way == choice.Copy:
		return clean(c.Transport)
	}
	return clean(c.Transport + " (" + string(c.Way) + ")")
}

func rate(v float64) string {
	switch {
	case v <= 0:
		return "-"
	case v >= 1e9:
		return fmt.Sprintf("%.2f GB/s", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.1f MB/s", v/1e6)
	}
	return fmt.Sprintf("%.1f kB/s", v/1e3)
}

func latency(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1e3)
}

// age is how old the measured figures are.
func age(l handoff.Link) string {
	switch {
	case l.Measured == choice.Measured{}:
		return "-"
	case l.Ago < time.Second:
		return "new"
	}
	return l.Ago.Round(time.Second).String()
}

// maxText bounds what one of them says, in runes.
const maxText = 4096

// clean is what others say without what steers a terminal.
func clean(s string) string { return say.Line(s, maxText) }

// line is one link in JSON. Rates are in bytes a second, times in seconds.
type line struct {
	Reader    string         `json:"reader"`
	Peer      string         `json:"peer"`
	Transport string         `json:"transport"` // empty: none
	Way       choice.Way     `json:"way,omitempty"`
	Code      choice.Code    `json:"code,omitempty"`
	Why       string         `json:"why,omitempty"`
	Fallback  bool           `json:"fallback"`
	Since     float64        `json:"chosen_seconds_ago"`
	Rate      float64        `json:"bytes_per_second,omitempty"`
	Latency   float64        `json:"latency_seconds,omitempty"`
	Measured  float64        `json:"measured_seconds_ago,omitempty"`
	Expected  float64        `json:"expected_bytes_per_second,omitempty"`
	Against   string         `json:"expected_by,omitempty"`
	Verdict   choice.Verdict `json:"verdict"`
	Cause     string         `json:"cause,omitempty"`
	Fix       string         `json:"fix,omitempty"`
}

// silent is a sidecar that did not answer, in JSON.
type silent struct {
	Name  string `json:"sidecar"`
	Addr  string `json:"addr"`
	Error string `json:"error"`
	Why   string `json:"why"`
	Gone  bool   `json:"gone"` // it has left discovery since, and is no fault
}

// JSON writes one object.
func (r Report) JSON(out io.Writer) error {
	page := struct {
		Well   bool     `json:"well"`
		Links  []line   `json:"links"`
		Silent []silent `json:"silent"`
		Lack   []string `json:"not_ready"` // groups
	}{r.Verdict() == nil, []line{}, []silent{}, append([]string{}, r.lacking()...)}
	for _, l := range r.links() {
		c, f := l.Choice, l.Finding
		page.Links = append(page.Links, line{l.Reader.Name(), l.Peer.Name(), c.Transport, c.Way, c.Code, c.Why, c.Code.Fallback() && c.Code != "", l.Age.Seconds(),
			l.Measured.Rate, l.Measured.Latency.Seconds(), l.Ago.Seconds(), l.Expected, l.Against, f.Verdict, f.Cause, f.Fix})
	}
	for _, a := range r.Asked {
		if a.Err != nil {
			page.Silent = append(page.Silent, silent{fmt.Sprintf("%s/%d", a.Record.Group, a.Record.Rank), a.Record.Addr, errs.Name(a.Err), a.Err.Error(), a.Gone})
		}
	}
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(page)
}
