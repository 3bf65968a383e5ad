package planview_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/batonkv/baton/transfer/planview"
)

// drawing is what an SVG has, beside where it is.
type drawing struct {
	count map[string]int // of elements
	texts []string
	outer map[string]string // attributes of the root
}

// draw renders v and reads it back: it must be well-formed, refer to nothing and run nothing.
func draw(t *testing.T, v *planview.View) drawing {
	t.Helper()
	var b bytes.Buffer
	if err := v.SVG(&b); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 1<<20 {
		t.Errorf("%d bytes", b.Len())
	}
	d := drawing{count: map[string]int{}, outer: map[string]string{}}
	var in string
	for dec := xml.NewDecoder(&b); ; {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return d
		}
		if err != nil {
			t.Fatal(err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			in = tok.Name.Local
			for _, a := range tok.Attr {
				if len(d.count) == 0 {
					d.outer[a.Name.Local] = a.Value
				}
				if strings.HasPrefix(a.Name.Local, "on") || strings.Contains(a.Name.Local, "href") ||
					strings.Contains(a.Value, "url(") && !strings.HasPrefix(a.Value, "url(#s") || strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("%s has %s=%q", in, a.Name.Local, a.Value)
				}
			}
			if a := tok.Attr; in == "g" && len(a) > 0 && a[0].Value == "ribbon" {
				in = "ribbon"
			}
			d.count[in]++
		case xml.CharData:
			if s := strings.TrimSpace(string(tok)); s != "" && (in == "text" || in == "tspan") {
				d.texts = append(d.texts, s)
			}
		}
	}
}

// TestPicture holds what pictures show against a golden file: texts and counts of shapes,
// not their places. BATON_GOLDEN=write renews it.
func TestPicture(t *testing.T) {
	var got strings.Builder
	for _, c := range []struct {
		model, from, to string
		tokens          int32
	}{
		{"nemotron-h-8b", "tp=1", "tp=2", 8192},
		{"llama-3.1-70b", "tp=2", "tp=1", 1},
		{"llama-3.1-70b", "tp=4", "tp=2,pp=2", 8192},
		{"nemotron-3-super-120b-a12b", "tp=8", "tp=8", 8192},
		{"llama-3.1-405b", "tp=8,pp=4", "tp=8,pp=2", 8192},
		{"nemotron-h-8b", "tp=3", "tp=4", 0},
		{"llama-3.1-8b", "tp=2", "tp=1", 0},
		{"llama-3.1-8b", "tp=1", "tp=1,dtype=fp8", 10},
		{"llama-3.1-8b", "tp=16", "tp=1", 100},
		{"llama-3.1-405b", "tp=8,pp=32", "tp=64,pp=4", 100},
	} {
		d := draw(t, explain(t, c.model, c.from, c.to, c.tokens))
		fmt.Fprintf(&got, "== %s %s %s %d: %d ribbons, %d shapes, %d dots\n", c.model, c.from, c.to, c.tokens, d.count["ribbon"], d.count["path"], d.count["circle"])
		for _, s := range d.texts {
			fmt.Fprintln(&got, s)
		}
	}
	const file = "testdata/pictures.txt"
	if os.Getenv("BATON_GOLDEN") == "write" {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	g, w := strings.Split(got.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		if i >= len(g) || i >= len(w) || g[i] != w[i] {
			t.Fatalf("line %d of %s: got %q", i+1, file, g[min(i, len(g)-1)])
		}
	}
}

// A name is text, whatever it holds, and a picture is bounded, whatever the plan.
func TestPictureOfAnything(t *testing.T) {
	const head = "states: [{name: \"<script>&']]>\", paging: block, layers: 1, units: 1000, elems: 4}]\nmodel: \"</text><script>alert(1)</script>\"\n"
	var src, dst strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&src, "  - {state: \"<script>&']]>\", rank: %d, layers: [0, 1], units: [%d, %d]}\n", i, i, i+1)
		fmt.Fprintf(&dst, "  - {state: \"<script>&']]>\", rank: %d, layers: [0, 1], units: [%d, %d]}\n", i*37%1000*1000, i, i+1)
	}
	g, err := planview.OfBoxes([]byte(head+"source:\n"+src.String()+"destination:\n"+dst.String()), def, 3)
	if err != nil {
		t.Fatal(err)
	}
	v, err := planview.Explain(g, 3)
	if err != nil {
		t.Fatal(err)
	}
	d := draw(t, v)
	if d.count["script"] != 0 || d.count["ribbon"] > 32*32 || len(d.texts) > 300 {
		t.Errorf("%v, %d texts", d.count, len(d.texts))
	}
	if h, err := strconv.Atoi(d.outer["height"]); err != nil || h < 200 || h > 6000 {
		t.Errorf("height %q", d.outer["height"])
	}
	v.Model, v.From, v.States[0].Name, v.Notes = strings.Repeat("ü", 1<<20), "\xff\x00<", strings.Repeat("x.", 1<<16), make([]string, 1000)
	draw(t, v)
}
