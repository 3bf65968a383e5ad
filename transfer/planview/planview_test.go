package planview_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/models"
	"github.com/batonkv/baton/transfer/planview"
	"github.com/batonkv/baton/transfer/reshard"
)

var def = planview.Default{Block: 64, KV: layout.BF16}

func explain(t *testing.T, name, from, to string, tokens int32) *planview.View {
	t.Helper()
	m, err := models.ByName(name)
	if err != nil {
		t.Fatal(err)
	}
	a, err := planview.ParseSide(from, def)
	if err != nil {
		t.Fatal(err)
	}
	b, err := planview.ParseSide(to, def)
	if err != nil {
		t.Fatal(err)
	}
	g, err := planview.OfModel(m, a, b, tokens)
	if err != nil {
		t.Fatal(err)
	}
	v, err := planview.Explain(g, tokens)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Sums agree whichever way they are taken, for every model Baton has.
func TestSums(t *testing.T) {
	for _, m := range models.All() {
		if len(m.Lacks) > 0 {
			continue
		}
		for _, sides := range [][2]string{{"tp=1", "tp=1"}, {"tp=4", "tp=2,pp=2"}, {"tp=3,pp=3", "tp=8,block=16,heads=first"}} {
			v := explain(t, m.Slug, sides[0], sides[1], 300)
			var pairs, states int64
			for _, p := range v.Pairs {
				pairs += p.Bytes
				if p.Nests == 0 || p.Scattered < p.Nests || p.Copies < int64(p.Nests) || len(p.Boxes) == 0 {
					t.Errorf("%s %v: pair %+v", m.Slug, sides, p)
				}
			}
			for _, s := range v.States {
				states += s.Bytes
			}
			if pairs != v.Bytes || states != v.Bytes || v.Bytes == 0 || len(v.Digest) != 64 {
				t.Errorf("%s %v: pairs %d, states %d, total %d", m.Slug, sides, pairs, states, v.Bytes)
			}
		}
	}
}

func TestNoTokens(t *testing.T) {
	if v := explain(t, "llama-3.1-8b", "tp=2", "tp=1", 0); v.Bytes != 0 || len(v.Pairs) != 2 {
		t.Errorf("%+v", v)
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	if err := explain(t, "nemotron-3-super-120b-a12b", "tp=2", "tp=1,dtype=fp8", 100).Table(&b); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"tp=2 to tp=1,dtype=fp8, 100 tokens", "(no copier converts bf16 to fp8_e4m3: a hand-off of this pair is refused)", "conv.b+conv.c", "note: the state of 2 draft (MTP) layers"} {
		if !strings.Contains(b.String(), s) {
			t.Errorf("no %q in\n%s", s, b.String())
		}
	}
}

func TestRefused(t *testing.T) {
	v := explain(t, "llama-3.1-8b", "tp=1", "tp=1,dtype=fp8", 10)
	if err := v.Check(); !errors.Is(err, planview.ErrRefused) || len(v.Refused) != 1 || v.Pairs[0].Refused == "" {
		t.Errorf("%v %+v", err, v.Refused)
	}
	v = explain(t, "llama-3.1-8b", "tp=1", "tp=1,dtype=fp32", 10)
	if err := v.Check(); err != nil || !slices.Equal(v.Notes, []string{"bf16 becomes fp32 on the way, each element rounded once"}) {
		t.Errorf("%v %q", err, v.Notes)
	}
	v = explain(t, "llama-3.1-8b", "tp=8", "tp=8", 10)
	if err := v.Check(); err != nil {
		t.Error(err)
	}
	var b strings.Builder
	if err := v.Table(&b); err != nil || !strings.Contains(b.String(), "layers 0-31 unit 7\n") || !strings.Contains(b.String(), "moved") {
		t.Errorf("%v\n%s", err, b.String())
	}
	b.Reset()
	if err := explain(t, "llama-3.1-8b", "tp=1", "tp=1", 10).Table(&b); err != nil || !strings.Contains(b.String(), "\n1 pair, ") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

const head = "states: [{name: k, paging: block, layers: 1, units: 2, elems: 4}]\n"

func TestBoxes(t *testing.T) {
	for _, c := range []struct{ name, file, says string }{
		{"views", head + "source: [{state: k, rank: 0, layers: [0, 1], units: [0, 2], rows: 4, items: 9, view: {item: 80, row: 20, unit: 8, elem: 2}}]\n" +
			"destination: [{state: k, rank: 0, layers: [0, 1], units: [0, 2]}]", ""},
		{"empty", "", "empty"},
		{"no states", "model: x", "0 states"},
		{"paging", strings.Replace(head, "block", "page", 1), `paging "page"`},
		{"unknown state", head + "source: [{state: v, rank: 0}]", `source[0]: state "v"`},
		{"dtype", head + "source: [{state: k, dtype: int3}]", "int3"},
		{"outside", head + "destination: [{state: k, rank: 1, layers: [0, 1], units: [1, 3]}]", "destination: layout: bad geometry: state k, rank 1"},
		{"overflow", strings.Replace(head, "elems: 4", "elems: 268435456", 1) + "source: [{state: k, layers: [0, 1], units: [0, 2], rows: 1048576, items: 2147483647}]", "2^60"},
		{"not a number", head + "source: [{state: k, rank: x}]", "boxes"},
		{"unknown key", "modle: x", "line 1: key modle is unknown: want one of model, states"},
		{"unknown key of a shard", head + "source: [{sate: k}]", "key sate is unknown: want one of state, rank"},
		{"no span", head + "source: [{state: k, layers: 3}]", "where a span such as [0, 2] is wanted"},
		{"a name that steers terminals", strings.Replace(head, "name: k", `name: "k\e[31m"`, 1), "states[0]: name"},
		{"a model's name that does", `model: "x\a"`, "model"},
		{"no list", head + "source: {state: k}", "where a list is wanted"},
		{"too long", strings.Repeat("#", planview.MaxFile+1), "at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := planview.OfBoxes([]byte(c.file), def, 30)
			if c.says != "" {
				if err != nil && (strings.Contains(err.Error(), "planview.") || strings.Contains(err.Error(), "int32")) {
					t.Errorf("names of types: %v", err)
				}
				if !errors.Is(err, planview.ErrInput) || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("%v does not say %q", err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if v, err := planview.Explain(g, 30); err != nil || v.Bytes != 30*2*4*2 {
				t.Fatalf("%+v, %v", v, err)
			}
		})
	}
	g, err := planview.OfBoxes([]byte(head+"source: [{state: k, layers: [0, 1], units: [0, 1]}]\ndestination: [{state: k, layers: [0, 1], units: [0, 2]}]"), def, 30)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := planview.Explain(g, 30); !errors.Is(err, reshard.ErrUncovered) {
		t.Errorf("a hole in the source: %v", err)
	}
}

func FuzzBoxes(f *testing.F) {
	f.Add([]byte(head+"source: [{state: k, layers: [0, 1], units: [0, 2]}]\ndestination: [{state: k, layers: [0, 1], units: [0, 2], rows: 3}]"), int32(20))
	f.Fuzz(func(t *testing.T, b []byte, tokens int32) {
		g, err := planview.OfBoxes(b, def, tokens)
		if err != nil {
			return
		}
		if _, err := planview.Explain(g, min(tokens, 500)); err != nil {
			_ = err.Error()
		}
	})
}

func FuzzSide(f *testing.F) {
	f.Add("tp=4,pp=2,block=16,order=blocks")
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := planview.ParseSide(s, def); err != nil && !errors.Is(err, planview.ErrInput) {
			t.Fatal(err)
		}
	})
}
