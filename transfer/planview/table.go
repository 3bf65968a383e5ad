package planview

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/batonkv/baton/internal/say"
)

// Table writes v as text.
func (v *View) Table(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "%s: %s to %s, %s\n\n", v.Model, v.From, v.To, say.Count(v.Tokens, "token"))
	fmt.Fprintln(tw, "state\tlayers\tunits\telems\tkept per\tmoved")
	for _, s := range v.States {
		per := "request"
		if s.Paged {
			per = "token"
		}
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%s\t%s\n", s.Name, s.Layers, s.Units, s.Elems, per, Size(s.Bytes))
	}
	fmt.Fprintln(tw, "\nfrom\tto\tbytes\tnests\tscattered\tcopies\twhat")
	for _, p := range v.Pairs {
		note := ""
		if p.Refused != "" {
			note = " (" + p.Refused + ")"
		}
		fmt.Fprintf(tw, "%d\t%d\t%s\t%d\t%d\t%d\t%s%s\n", p.Src, p.Dst, Size(p.Bytes), p.Nests, p.Scattered, p.Copies, what(p.Boxes), note)
	}
	fmt.Fprintf(tw, "\n%s, %s (%d bytes), plan %.12s\n", say.Count(len(v.Pairs), "pair"), Size(v.Bytes), v.Bytes, v.Digest)
	fmt.Fprintln(tw, "nests: strided copies when blocks are consecutive; scattered: when none are; copies: contiguous ones")
	for _, n := range v.Notes {
		fmt.Fprintln(tw, "note: "+n)
	}
	return tw.Flush()
}

// what lists boxes, states with the same box together.
func what(boxes []Box) string {
	const most = 6
	var out []string
	for _, b := range together(boxes) {
		out = append(out, b.String())
	}
	if n := len(out); n > most {
		out = append(out[:most], fmt.Sprintf("and %d more", n-most))
	}
	return strings.Join(out, "; ")
}

// together are boxes with states of the same box, one after the other, in one: State is
// their names, joined by +.
func together(boxes []Box) []Box {
	var out []Box
	for _, b := range boxes {
		if n := len(out); n > 0 && out[n-1].Layers == b.Layers && out[n-1].Units == b.Units {
			out[n-1].State += "+" + b.State
			out[n-1].Bytes += b.Bytes
			continue
		}
		out = append(out, b)
	}
	return out
}

func (b Box) String() string {
	return fmt.Sprintf("%s %s %s", b.State, span("layer", b.Layers), span("unit", b.Units))
}

// span is half-open in lo and hi and printed with its last.
func span(what string, s [2]int32) string {
	if s[1]-s[0] == 1 {
		return fmt.Sprintf("%s %d", what, s[0])
	}
	return fmt.Sprintf("%ss %d-%d", what, s[0], s[1]-1)
}

// Size is n in the largest binary unit that leaves a whole part.
func Size(n int64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB"}
	x, i := float64(n), 0
	for ; x >= 1024 && i < len(units)-1; i++ {
		x /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", x, units[i])
}
