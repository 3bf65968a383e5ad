package model_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/safetensors"
	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/transfer/layout"
)

// tolerance is of logits, which reach 20: both sides add fp32 products in orders of
// their own.
const tolerance = 2e-4

// written are the models of python/make.py.
var written = []string{"llama", "bamba", "groups"}

// exact keeps all state in fp32, as transformers does on a CPU.
var exact = model.Types{KV: layout.F32, Conv: layout.F32, SSM: layout.F32}

// expected is what transformers computed of one prompt.
type expected struct {
	tokens, greedy []int32
	logits         [][]float32 // after each token
}

func readExpected(t *testing.T, dir string) (out []expected) {
	f, err := os.Open(filepath.Join(dir, "expected.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	all, err := safetensors.Read(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	floats := func(i int, name string) []float32 {
		x := all[fmt.Sprintf("%d.%s", i, name)]
		v, err := x.Floats(0, x.Len())
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	tokens := func(i int, name string) (out []int32) {
		for _, v := range floats(i, name) {
			out = append(out, int32(v))
		}
		return out
	}
	for i := range len(all) / 3 {
		e := expected{tokens: tokens(i, "tokens"), greedy: tokens(i, "greedy")}
		v := floats(i, "logits")
		for n := len(v) / len(e.tokens); len(v) > 0; v = v[n:] {
			e.logits = append(e.logits, v[:n])
		}
		out = append(out, e)
	}
	return out
}

// compare holds the engine's logits after every token, and the greedy ones, to those of
// transformers, and returns the largest difference.
func compare(t *testing.T, dir string, split model.Split) (most float64) {
	cfg, err := model.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	sizes := sizes
	sizes.Types = exact
	ranks := newSplit(t, cfg, sizes, split)
	want := readExpected(t, dir)
	if len(want) < 3 {
		t.Fatalf("%d prompts", len(want))
	}
	for _, w := range want {
		for _, r := range ranks {
			r.mem.ClearSlot(seq.Slot)
		}
		for i := range w.tokens {
			got := forward(t, ranks, seq, w.tokens[i:i+1], int32(i))
			most = max(most, furthest(got, w.logits[i]))
		}
		// The whole prompt at once, and on from it.
		if got := generate(t, ranks, seq, w.tokens, len(w.greedy), 64, nil); !slices.Equal(got, w.greedy) {
			t.Errorf("%s, %v, %d tokens: %v, transformers says %v", cfg.Name, split, len(w.tokens), got, w.greedy)
		}
	}
	if !(most <= tolerance) {
		t.Errorf("%s, %v: logits differ by %.2g, want at most %.2g", cfg.Name, split, most, tolerance)
	}
	return most
}

// furthest is the largest difference of two vectors.
func furthest(a, b []float32) (most float64) {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	for i := range a {
		d := math.Abs(float64(a[i]) - float64(b[i]))
		if most = max(most, d); d != d {
			return math.Inf(1)
		}
	}
	return most
}

// TestTransformersAgree: logits of models that transformers wrote are those that it
// computes. testdata has what python/make.py wrote once (origin.json names the versions).
func TestTransformersAgree(t *testing.T) {
	for _, name := range written {
		for _, split := range []model.Split{{}, {TP: 2}, {TP: 4}, {PP: 2}} {
			if name == "groups" && split.TP > 2 {
				continue // as many as groups
			}
			if most := compare(t, filepath.Join("testdata", name), split); most == 0 {
				t.Errorf("%s: nothing was compared", name)
			} else {
				t.Logf("%s, %v: logits differ by at most %.2g", name, split, most)
			}
		}
	}
}

// TestTransformersFresh is TestTransformersAgree with models that transformers, which
// BATON_TRANSFORMERS's Python has, makes on the spot.
func TestTransformersFresh(t *testing.T) {
	python := need.Transformers(t)
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), python, "python/make.py", dir, "71").CombinedOutput(); err != nil {
		need.Skip(t, "transformers", "%s python/make.py: %v: %s", python, err, out)
	}
	for _, name := range written {
		for _, split := range []model.Split{{}, {TP: 2}} {
			t.Logf("%s, %v: logits differ by at most %.2g", name, split, compare(t, filepath.Join(dir, name), split))
		}
	}
}

// TestLoadedLayoutsAgree: ranks of a loaded model give equal bits in every layout.
func TestLoadedLayoutsAgree(t *testing.T) {
	for _, name := range written {
		cfg := load(t, filepath.Join("testdata", name))
		prompt := text(prose)
		var want []float32
		for _, split := range []model.Split{{}, {TP: 2}, {TP: 4}, {TP: 2, PP: 2}} {
			if name == "groups" && split.TP > 2 {
				continue
			}
			ranks := newSplit(t, cfg, sizes, split)
			got := generate(t, ranks, seq, prompt, 8, 30, nil)
			logits := forward(t, ranks, seq, got[7:], int32(len(prompt)+7))
			if want == nil {
				want = logits
			}
			if !slices.Equal(logits, want) {
				t.Errorf("%s, %v: logits are not those of one rank", cfg.Name, split)
			}
		}
	}
}

func load(t *testing.T, dir string) model.Config {
	cfg, err := model.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// copyOf is a copy of a directory of testdata with one file changed.
func copyOf(t *testing.T, name, file string, change func([]byte) []byte) string {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", name))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, file)
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestNameIsTheWeights: another weight, or another setting, is another model.
func TestNameIsTheWeights(t *testing.T) {
	one := load(t, "testdata/llama").Name
	if again := load(t, "testdata/llama").Name; again != one {
		t.Errorf("%s, then %s", one, again)
	}
	for _, file := range []string{"config.json", "model.safetensors"} {
		dir := copyOf(t, "llama", file, func(b []byte) []byte {
			if file == "config.json" {
				return append(b, '\n')
			}
			b[len(b)-1] ^= 1
			return b
		})
		if other := load(t, dir).Name; other == one {
			t.Errorf("another %s: still %s", file, one)
		}
	}
}

// TestLoadRefuses what the arithmetic does not have, and files that do not fit together.
func TestLoadRefuses(t *testing.T) {
	for name, change := range map[string][2]string{
		"another type":     {`"model_type": "bamba"`, `"model_type": "mamba"`},
		"activation":       {`"hidden_act": "silu"`, `"hidden_act": "gelu"`},
		"scaled positions": {`"rope_type": "default"`, `"rope_type": "llama3"`},
		"half a factor":    {`"partial_rotary_factor": 0.5`, `"partial_rotary_factor": 1.5`},
		"no rotary":        {`"partial_rotary_factor": 0.5`, `"partial_rotary_factor": 0.01`},
		"biases":           {`"mamba_proj_bias": false`, `"mamba_proj_bias": true`},
		"no conv bias":     {`"mamba_conv_bias": true`, `"mamba_conv_bias": false`},
		"no heads":         {`"num_attention_heads": 4`, `"num_attention_heads": 0`},
		"negative":         {`"hidden_size": 32`, `"hidden_size": -32`},
		"huge":             {`"hidden_size": 32`, `"hidden_size": 4294967296`},
		"layers":           {`"num_hidden_layers": 4`, `"num_hidden_layers": 60000`},
		"attention beyond": {`"attn_layer_indices": [`, `"attn_layer_indices": [4,`},
		"step limit":       {`"__float__": "Infinity"`, `"__float__": 0.1`},
		"uneven groups":    {`"mamba_n_groups": 1`, `"mamba_n_groups": 3`},
		"eos":              {`"eos_token_id": 257`, `"eos_token_id": [1, 2]`},
		"eos beyond":       {`"eos_token_id": 257`, `"eos_token_id": 258`},
		"eps":              {`"rms_norm_eps": 1e-05`, `"rms_norm_eps": -1`},
		"theta":            {`"rope_theta": 10000.0`, `"rope_theta": 0`},
		"text":             {`"hidden_size": 32`, `"hidden_size": "32"`},
		// Found by New, which reads the tensors:
		"wider":           {`"intermediate_size": 64`, `"intermediate_size": 128`},
		"more words":      {`"vocab_size": 258`, `"vocab_size": 259`},
		"a layer more":    {`"num_hidden_layers": 4`, `"num_hidden_layers": 5`},
		"another pattern": {`"attn_layer_indices": [`, `"attn_layer_indices": [0,`},
	} {
		dir := copyOf(t, "bamba", "config.json", func(b []byte) []byte {
			out := strings.Replace(string(b), change[0], change[1], 1)
			if out == string(b) {
				t.Fatalf("%s: no %q", name, change[0])
			}
			return []byte(out)
		})
		cfg, err := model.Load(dir)
		if err == nil {
			_, err = model.New(cfg, 0, model.Split{})
		}
		if !errors.Is(err, model.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, dir := range map[string]string{
		"no directory": filepath.Join(t.TempDir(), "none"),
		"no settings":  t.TempDir(),
		"long settings": copyOf(t, "llama", "config.json", func(b []byte) []byte {
			return append(b, strings.Repeat(" ", 1<<20)...)
		}),
		"cut weights": copyOf(t, "llama", "model.safetensors", func(b []byte) []byte { return b[:len(b)-1] }),
	} {
		cfg, err := model.Load(dir)
		if err == nil {
			_, err = model.New(cfg, 0, model.Split{})
		}
		if !errors.Is(err, model.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
