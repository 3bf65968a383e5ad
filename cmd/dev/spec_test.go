package dev

import (
	"errors"
	"slices"
	"testing"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/transfer/layout"
)

func TestParseShards(t *testing.T) {
	got, err := ParseShards("tp=2,pp=2,layers=3:1,ep=2,expt_tp=1,role=prefill+dp=2,kv=fp16,role=decode")
	if err != nil || len(got) != 3 {
		t.Fatal(got, err)
	}
	p, d := got[0], got[2]
	if p.Name != "prefill-0" || p.Size() != 8 || p.TP != 2 || p.PP != 2 || p.EP != 2 || p.ExptTP != 1 || !slices.Equal(p.Layers, []int{3, 1}) {
		t.Errorf("%+v", p)
	}
	if want := []string{"--pp", "2", "--ep", "2", "--layers", "3", "--layers", "1"}; !slices.Equal(p.split(), want) {
		t.Errorf("%q, want %q", p.split(), want)
	}
	if d.Name != "decode-1" || d.Role != discovery.Decode || d.Size() != 1 || d.Layers != nil || d.KV != layout.F16 || d.split() != nil {
		t.Errorf("%+v", d)
	}
	for _, bad := range []string{"", "role=prefill,tp=0", "role=prefill,tp=2,tp=2", "role=prefill,pp=2,layers=1", "role=prefill,layers=0", "role=prefill,layers=",
		"role=prefill,pp=2,layers=300:1", "role=both", "role=prefill,tp=64,pp=2", "role=prefill,dp=64,tp=64,pp=64,ep=64,expt_tp=64"} {
		if _, err := ParseShards(bad); !errors.Is(err, ErrSpec) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
