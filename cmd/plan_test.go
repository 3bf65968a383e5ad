package cmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonkv/baton/transfer/planview"
)

// plan runs `baton plan` by itself.
func plan(args ...string) (string, error) {
	c := newPlanCmd()
	c.SilenceErrors, c.SilenceUsage = true, true
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

const boxesYAML = `
model: two heads
states:
  - {name: attn.k, paging: block, layers: 2, units: 2, elems: 8}
  - {name: ssm, paging: request, layers: 1, units: 4, elems: 16}
source:
  - {state: attn.k, rank: 0, layers: [0, 2], units: [0, 1]}
  - {state: attn.k, rank: 1, layers: [0, 2], units: [1, 2]}
  - {state: ssm, rank: 1, layers: [0, 1], units: [0, 4], dtype: fp32}
destination:
  - {state: attn.k, rank: 0, layers: [0, 2], units: [0, 2], rows: 16}
  - {state: ssm, rank: 0, layers: [0, 1], units: [0, 4], dtype: fp32}
`

func TestPlan(t *testing.T) {
	boxes := filepath.Join(t.TempDir(), "boxes.yaml")
	if err := os.WriteFile(boxes, []byte(boxesYAML), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		says []string
	}{
		{"table", []string{"--model", "llama-3.1-70b", "--from", "tp=4", "--to", "tp=2,pp=2", "--tokens", "8192"},
			[]string{"attn.k+attn.v layers 0-39 units 0-1", "2.5 GiB (2684354560 bytes)", "8 pairs"}},
		{"replicas", []string{"--model", "nemotron-3-nano-30b-a3b", "--from", "tp=4", "--to", "tp=1"}, []string{"conv.x", "ssm"}},
		{"draft layers", []string{"--model", "DeepSeek-V3", "--from", "tp=8", "--to", "tp=4"}, []string{"attn.latent", "draft (MTP)"}},
		{"boxes", []string{"--boxes", boxes, "--tokens", "100"}, []string{"two heads", "2 pairs", "6.5 KiB (6656 bytes)"}},
		{"picture", []string{"--model", "llama-3.1-70b", "--from", "tp=4", "--to", "tp=2,pp=2", "-o", "svg"}, []string{"<svg", "layers 40-79 units 6-7", "</svg>\n"}},
		{"list", []string{"--list"}, []string{"llama-3.1-405b", "lacks gated delta net (GDN)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := plan(c.args...)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range c.says {
				if !strings.Contains(out, s) {
					t.Errorf("no %q in\n%s", s, out)
				}
			}
		})
	}
}

func TestPlanJSON(t *testing.T) {
	out, err := plan("--model", "nemotron-h-8b", "--from", "tp=2,block=16", "--to", "tp=1", "--tokens", "1000", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var v planview.View
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatal(err)
	}
	// bf16 KV of 4 layers, 8 heads of 128; bf16 windows of 4 columns; fp32 recurrent state.
	want := int64(1000*4*2*8*128*2 + 24*((8192+2*1024)*4*2+128*64*128*4))
	if v.Bytes != want || len(v.Pairs) != 2 || v.Pairs[0].Bytes+v.Pairs[1].Bytes != want {
		t.Errorf("%d bytes over %d pairs, want %d over 2", v.Bytes, len(v.Pairs), want)
	}
}

func TestPlanErrors(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte(strings.Replace(boxesYAML, "units: [1, 2]", "units: [1, 3]", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key.yaml")
	if err := os.WriteFile(key, []byte("modle: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "give --model NAME"},
		{[]string{"--model", "lama-3.1-70b"}, "did you mean llama-3.1-70b"},
		{[]string{"--model", "qwen3-next-80b-a3b"}, "gated delta net"},
		{[]string{"--model", "gpt-oss-120b"}, "sliding-window attention"},
		{[]string{"--model", "qwen3-8b", "--from", "tp"}, "want key=value"},
		{[]string{"--model", "qwen3-8b", "--from", "tp=0"}, "tp=0: want a number from 1"},
		{[]string{"--model", "qwen3-8b", "--to", "dp=2"}, `unknown key "dp"`},
		{[]string{"--model", "qwen3-8b", "--to", "tp=2,tp=2"}, "given twice"},
		{[]string{"--model", "qwen3-8b", "--dtype", "int4"}, "want bf16, fp16"},
		{[]string{"--model", "qwen3-8b", "--block", "0"}, "--block 0"},
		{[]string{"--model", "qwen3-8b", "--tokens", "-1"}, "--tokens -1: want 1 to 1048576"},
		{[]string{"--model", "qwen3-8b", "--tokens", "0"}, "--tokens 0: want 1 to 1048576"},
		{[]string{"--model", "qwen3-8b", "-o", "yaml"}, "want table, json, svg"},
		{[]string{"--boxes", bad}, "source: layout: bad geometry: state attn.k, rank 1"},
		{[]string{"--boxes", key}, "modle"},
		{[]string{"--boxes", filepath.Join(t.TempDir(), "none")}, "no such file"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			out, err := plan(c.args...)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("%v does not say %q\n%s", err, c.says, out)
			}
			if _, ok := err.(*UsageError); !ok {
				t.Errorf("%T is no usage error", err)
			}
		})
	}
}
