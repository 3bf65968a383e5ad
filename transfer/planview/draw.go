package planview

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/batonkv/baton/internal/say"
)

// SVG draws v: who sends what to whom, sources on the left, ribbons as wide as their
// bytes. It has no script and refers to nothing outside; whatever a name holds is text.
// Its size is bounded whatever the plan.
func (v *View) SVG(w io.Writer) error {
	p := v.lay()
	var body bytes.Buffer
	p.head(&body)
	p.flow(&body)
	p.rows(&body)
	p.lines(&body)
	end := p.legend(&body, p.bottom+34)
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" role="img" aria-labelledby="t d">`+"\n", picWidth, end, picWidth, end)
	fmt.Fprintf(&out, "<title id=\"t\">%s</title>\n", text(v.Model+": "+v.From+" to "+v.To, maxTip))
	fmt.Fprintf(&out, "<desc id=\"d\">%s</desc>\n", text(fmt.Sprintf("%s of %s move over %s of ranks, plan %s", Size(v.Bytes), say.Count(v.Tokens, "token"), say.Count(len(v.Pairs), "pair"), v.Digest), maxTip))
	out.WriteString(style)
	p.gradients(&out)
	fmt.Fprintf(&out, "<rect class=\"bg\" width=\"%d\" height=\"%.0f\" rx=\"12\"/>\n", picWidth, end)
	out.Write(body.Bytes())
	out.WriteString("</svg>\n")
	_, err := w.Write(out.Bytes())
	return err
}

// style serves light and dark; where a viewer knows no preference it is light.
const style = `<style>
svg { font-family: ui-sans-serif, system-ui, "Segoe UI", "Liberation Sans", sans-serif; font-size: 13px }
.bg { fill: #ffffff; stroke: #d8dee9 } .ink { fill: #0f172a } .dim { fill: #64748b } .bad { fill: #b91c1c }
.rule { stroke: #e2e8f0 } .swatch { fill: #475569 } .idle { fill: #cbd5e1 } .no { stroke: #dc2626; stroke-dasharray: 5 4; fill: none }
.big { font-size: 22px; font-weight: 650 } .bold { font-weight: 600 } .small { font-size: 11.5px } .end { text-anchor: end }
.mono { font-family: ui-monospace, "Liberation Mono", monospace; font-size: 11.5px }
@media (prefers-color-scheme: dark) {
.bg { fill: #0f141b; stroke: #2b3442 } .ink { fill: #e6edf3 } .dim { fill: #93a1b3 } .bad { fill: #ff8f8f }
.rule { stroke: #2b3442 } .swatch { fill: #b6c2d1 } .idle { fill: #3b4656 } .no { stroke: #ff6b6b }
}
</style>
`

// text is s as text of the document: cut short, escaped, in valid characters.
func text(s string, most int) string {
	if r := []rune(s); len(r) > most {
		s = string(r[:most-1]) + "…"
	}
	var b strings.Builder
	xml.EscapeText(&b, []byte(s)) // a strings.Builder does not fail
	return b.String()
}

func put(b *bytes.Buffer, x, y float64, class, s string) {
	fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">%s</text>\n", x, y, class, text(s, maxText))
}

func (p *picture) head(b *bytes.Buffer) {
	v := p.v
	put(b, margin, 46, "ink big", v.Model)
	put(b, margin, 68, "dim", fmt.Sprintf("%s  →  %s", v.From, v.To))
	put(b, picWidth-margin, 46, "ink big end", Size(v.Bytes))
	put(b, picWidth-margin, 68, "dim end", fmt.Sprintf("%s, %s of ranks", say.Count(v.Tokens, "token"), say.Count(len(v.Pairs), "pair")))
	put(b, margin, headH-16, "dim small", say.Count(len(v.Sources), "source rank"))
	put(b, p.end+barW, headH-16, "dim small end", say.Count(len(v.Destinations), "destination rank"))
	if p.told() > 0 {
		put(b, textX, headH-16, "dim small", "what it pulls, and from whom")
	}
	fmt.Fprintf(b, "<path class=\"rule\" d=\"M%d %dH%d\"/>\n", margin, 80, picWidth-margin)
}

// flow draws the ribbons, each strand a shape that says on hovering what it is.
func (p *picture) flow(b *bytes.Buffer) {
	mid, end := (flowX+p.end)/2, p.end
	for i := range p.ribbons {
		r := &p.ribbons[i]
		fmt.Fprintf(b, "<g class=\"ribbon\" fill=\"url(#s%d)\"><title>%s</title>\n", r.src, text(p.tip(r), maxTip))
		y0, y1 := r.srcTop, r.dstTop
		for _, s := range r.strands {
			fmt.Fprintf(b, "<path fill-opacity=\"%.2f\" d=\"M%d %.1fC%.1f %.1f %.1f %.1f %.0f %.1fV%.1fC%.1f %.1f %.1f %.1f %d %.1fZ\"/>\n", opacity(s.shade),
				flowX, y0, mid, y0, mid, y1, end, y1, y1+s.thick, mid, y1+s.thick, mid, y0+s.thick, flowX, y0+s.thick)
			y0, y1 = y0+s.thick, y1+s.thick
		}
		if r.refused != "" {
			a, z := r.srcTop+r.thick/2, r.dstTop+r.thick/2
			fmt.Fprintf(b, "<path class=\"no\" d=\"M%d %.1fC%.1f %.1f %.1f %.1f %.0f %.1f\"/>\n", flowX, a, mid, a, mid, z, end, z)
		}
		b.WriteString("</g>\n")
	}
}

func opacity(shade int) float64 { return [maxShades]float64{0.78, 0.56, 0.40, 0.28, 0.18}[shade] }

// tip says all of a ribbon that fits.
func (p *picture) tip(r *ribbon) string {
	s := fmt.Sprintf("%s to %s: %s: %s", p.src[r.src].name(), p.dst[r.dst].name(), Size(r.bytes), what(r.boxes))
	if r.refused != "" {
		s += " (" + r.refused + ")"
	}
	return s
}

// rows draws the bars with their names and bytes.
func (p *picture) rows(b *bytes.Buffer) {
	for i := range p.src {
		r := &p.src[i]
		fill := fmt.Sprintf("fill=\"%s\"", colour(i, len(p.src)))
		if r.peers == 0 {
			fill = "class=\"idle\""
		}
		fmt.Fprintf(b, "<rect %s x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" rx=\"2\"/>\n", fill, flowX-barW, r.y, barW-2, r.h)
		p.rank(b, r, flowX-barW-9, " end")
	}
	for i := range p.dst {
		r := &p.dst[i]
		fmt.Fprintf(b, "<rect class=\"%s\" x=\"%.0f\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" rx=\"2\"/>\n", map[bool]string{true: "swatch", false: "idle"}[r.peers > 0], p.end+2, r.y, barW-2, r.h)
		p.rank(b, r, p.end+barW+9, "")
	}
}

// rank puts a row's name and bytes beside its bar: over each other where there is room.
func (p *picture) rank(b *bytes.Buffer, r *row, x float64, end string) {
	mid, bytes := r.y+r.h/2, Size(r.bytes)
	if r.peers == 0 {
		bytes = "idle"
	}
	if r.h >= 2*lineH-4 {
		put(b, x, mid-2, "ink bold"+end, r.name())
		put(b, x, mid+13, "dim small"+end, bytes)
		return
	}
	put(b, x, mid+4, "ink small"+end, fmt.Sprintf("%d · %s", r.lo, bytes))
}

// lines tells of each ribbon, at the height of its end, what it is.
func (p *picture) lines(b *bytes.Buffer) {
	const from, size, boxes = textX + 14, textX + 134, textX + 146
	for i := range p.ribbons {
		r := &p.ribbons[i]
		y := r.slotTop + (r.slot-float64(len(r.lines)*lineH))/2 + 12.5
		for n, l := range r.lines {
			if n == 0 {
				fmt.Fprintf(b, "<circle cx=\"%d\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", textX+4, y-4, colour(r.src, len(p.src)))
				put(b, from, y, "dim small", fmt.Sprintf("from %d", p.src[r.src].lo))
			}
			put(b, size, y, "ink bold small end", Size(l.Bytes))
			said := l.String()
			if more := r.more; more > 0 && n == len(r.lines)-1 {
				said = fmt.Sprintf("%s, %d more", text(said, 34), more)
			}
			put(b, boxes, y, "ink small", said)
			y += lineH
		}
	}
}

// legend tells the states, the notes and the digest, and returns where it ends.
func (p *picture) legend(b *bytes.Buffer, y float64) float64 {
	fmt.Fprintf(b, "<path class=\"rule\" d=\"M%d %.1fH%d\"/>\n", margin, y-18, picWidth-margin)
	put(b, margin, y+4, "dim small", "In each ribbon, from the top")
	put(b, 420, y+4, "dim small", "layers × units × elements")
	put(b, 640, y+4, "dim small", "kept per")
	put(b, 800, y+4, "dim small end", "moved")
	y += 24
	for i, s := range p.v.States {
		if i == maxLegend {
			put(b, margin+24, y, "dim small", fmt.Sprintf("and %d more states", len(p.v.States)-i))
			y += lineH
			break
		}
		fmt.Fprintf(b, "<rect class=\"swatch\" fill-opacity=\"%.2f\" x=\"%d\" y=\"%.1f\" width=\"14\" height=\"11\" rx=\"2\"/>\n", opacity(p.shade[familyOf(s.Name)]), margin, y-10)
		put(b, margin+24, y, "ink", s.Name)
		put(b, 420, y, "ink small", fmt.Sprintf("%d × %d × %d", s.Layers, s.Units, s.Elems))
		put(b, 640, y, "ink small", map[bool]string{true: "token", false: "request"}[s.Paged])
		put(b, 800, y, "ink small end", Size(s.Bytes))
		y += lineH + 2
	}
	y += 6
	for _, r := range p.v.Refused[:min(len(p.v.Refused), maxPicNotes)] {
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%.1f\" class=\"bad bold\">%s</text>\n", margin, y, text("refused: "+r, 130))
		y += lineH + 2
	}
	for _, n := range p.v.Notes[:min(len(p.v.Notes), maxPicNotes)] {
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%.1f\" class=\"dim small\">%s</text>\n", margin, y, text("note: "+n, 160))
		y += lineH
	}
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%.1f\" class=\"dim small\">plan <tspan class=\"mono\">%s</tspan></text>\n", margin, y+4, text(p.v.Digest, maxText))
	return y + 26
}

// gradients let a ribbon fade towards its destination.
func (p *picture) gradients(b *bytes.Buffer) {
	b.WriteString("<defs>\n")
	for i := range p.src {
		c := colour(i, len(p.src))
		fmt.Fprintf(b, "<linearGradient id=\"s%d\" gradientUnits=\"userSpaceOnUse\" x1=\"%d\" x2=\"%.0f\"><stop stop-color=\"%s\"/><stop offset=\"1\" stop-color=\"%s\" stop-opacity=\"0.62\"/></linearGradient>\n", i, flowX, p.end, c, c)
	}
	b.WriteString("</defs>\n")
}

// few are colours that are told apart on white and on black.
var few = [...]string{"#3b82f6", "#f59e0b", "#10b981", "#ec4899", "#8b5cf6", "#06b6d4", "#ef4444", "#84cc16"}

// colour is that of source row i of n: from a wheel when few are not enough.
func colour(i, n int) string {
	if n <= len(few) {
		return few[i]
	}
	h := math.Mod(212+330*float64(i)/float64(n), 360) / 60
	const light, chroma = 0.52, 0.62
	x := chroma * (1 - math.Abs(math.Mod(h, 2)-1))
	rgb := [6][3]float64{{chroma, x, 0}, {x, chroma, 0}, {0, chroma, x}, {0, x, chroma}, {x, 0, chroma}, {chroma, 0, x}}[int(h)%6]
	byteOf := func(f float64) int { return int(math.Round(255 * min(max(f+light-chroma/2, 0), 1))) }
	return fmt.Sprintf("#%02x%02x%02x", byteOf(rgb[0]), byteOf(rgb[1]), byteOf(rgb[2]))
}
