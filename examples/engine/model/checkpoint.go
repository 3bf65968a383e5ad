package model

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/batonkv/baton/internal/bounded"
)

// The settings of a checkpoint's config.json that the arithmetic hangs on, under the
// names that Hugging Face transformers gives them.
type settings struct {
	Type         string          `json:"model_type"`
	Vocab        int32           `json:"vocab_size"`
	Hidden       int             `json:"hidden_size"`
	Intermediate int             `json:"intermediate_size"`
	Layers       int             `json:"num_hidden_layers"`
	Heads        int             `json:"num_attention_heads"`
	KVHeads      int             `json:"num_key_value_heads"`
	HeadDim      int             `json:"head_dim"` // 0: Hidden shared out
	Eps          float64         `json:"rms_norm_eps"`
	Act          string          `json:"hidden_act"`
	EOS          json.RawMessage `json:"eos_token_id"`
	Tied         bool            `json:"tie_word_embeddings"`

	Rope struct {
		Type    string   `json:"rope_type"`
		Theta   float64  `json:"rope_theta"`
		Partial *float64 `json:"partial_rotary_factor"` // of a head; nil: all of it
	} `json:"rope_parameters"`

	AttentionLayers []int `json:"attn_layer_indices"`
	SSMHeads        int   `json:"mamba_n_heads"`
	SSMHeadDim      int   `json:"mamba_d_head"`
	Groups          int   `json:"mamba_n_groups"`
	StateDim        int   `json:"mamba_d_state"`
	Window          int   `json:"mamba_d_conv"`
	ConvBias        *bool `json:"mamba_conv_bias"`
	// StepLimit bounds softplus(dt), which nothing does here: its upper bound is no number.
	StepLimit []json.RawMessage `json:"time_step_limit"`

	AttentionBias bool `json:"attention_bias"`
	MLPBias       bool `json:"mlp_bias"`
	ProjBias      bool `json:"mamba_proj_bias"`
}

// maxSettings bounds a config.json in bytes.
const maxSettings = 1 << 20

// Load reads the model of a directory as transformers' save_pretrained leaves it:
// config.json and model*.safetensors. It takes Llama and Bamba, without biases of
// projections and with plain rotary positions; ErrConfig says what it does not take.
// The Config names the directory, which New reads the weights from, and in Name their
// digest: other weights are another model.
func Load(dir string) (Config, error) {
	s, err := readSettings(dir)
	if err != nil {
		return Config{}, err
	}
	c, err := s.config()
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", dir, err)
	}
	digest, err := digest(dir)
	if err != nil {
		return Config{}, err
	}
	c.Dir, c.Name = dir, fmt.Sprintf("%s-%x", s.Type, digest[:8])
	return c, c.Check()
}

func readSettings(dir string) (settings, error) {
	b, err := bounded.File(filepath.Join(dir, "config.json"), maxSettings)
	if err != nil {
		return settings{}, fmt.Errorf("%w: model directory: %w", ErrConfig, err)
	}
	return parseSettings(b)
}

func parseSettings(b []byte) (settings, error) {
	var s settings
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%w: config.json: %w", ErrConfig, err)
	}
	return s, nil
}

// config is the model of s, without name and directory.
func (s settings) config() (Config, error) {
	if err := s.check(); err != nil {
		return Config{}, err
	}
	eos, err := s.eos()
	if err != nil {
		return Config{}, err
	}
	c := Config{Pattern: s.pattern(), Hidden: s.Hidden, Vocab: s.Vocab, EOS: eos, Eps: s.Eps, Gated: true,
		QueryHeads: s.Heads, KVHeads: s.KVHeads, HeadDim: s.HeadDim, Theta: s.Rope.Theta,
		SSMHeads: s.SSMHeads, SSMHeadDim: s.SSMHeadDim, Groups: s.Groups, StateDim: s.StateDim, Window: s.Window}
	if c.HeadDim == 0 {
		c.HeadDim = s.Hidden / s.Heads
	}
	c.Rotary = c.HeadDim
	if s.Rope.Partial != nil {
		c.Rotary = int(float64(c.HeadDim) * *s.Rope.Partial)
	}
	if s.Type == "llama" {
		// Shares are counted of a mixer that no layer has, too.
		c.SSMHeads, c.SSMHeadDim, c.Groups, c.StateDim, c.Window = 1, 1, 1, 1, 2
	}
	c.QueryUnits, c.SSMUnits = unitsOf(c.QueryHeads, c.KVHeads), c.Groups
	if c.Groups == 1 {
		// The gated norm is over a group: with one of them, units divide what it is over.
		c.SSMUnits, c.WholeNorm = unitsOf(c.SSMHeads, 1), true
	}
	c.MLPGroups = unitsOf(s.Intermediate, 1)
	c.MLPColumns = s.Intermediate / c.MLPGroups
	return c, nil
}

// check refuses what the arithmetic does not have, and counts that cannot be multiplied.
func (s settings) check() error {
	const most = 1 << 16
	counts := []int{s.Hidden, s.Intermediate, s.Layers, s.Heads, s.KVHeads}
	if s.Type == "bamba" {
		counts = append(counts, s.SSMHeads, s.SSMHeadDim, s.Groups, s.StateDim, s.Window)
	}
	switch {
	case s.Type != "llama" && s.Type != "bamba":
		return fmt.Errorf("%w: model_type %q: want llama or bamba", ErrConfig, s.Type)
	case slices.Min(counts) < 1 || slices.Max(counts) > most || s.HeadDim < 0 || s.HeadDim > most:
		return fmt.Errorf("%w: counts %d and heads of %d: want 1 to %d", ErrConfig, counts, s.HeadDim, most)
	case s.Act != "silu":
		return fmt.Errorf("%w: hidden_act %q: want silu", ErrConfig, s.Act)
	case s.Rope.Type != "default":
		return fmt.Errorf("%w: rope_type %q: want default, in rope_parameters as transformers 5 saves it", ErrConfig, s.Rope.Type)
	case s.Rope.Partial != nil && (*s.Rope.Partial <= 0 || *s.Rope.Partial > 1):
		return fmt.Errorf("%w: partial_rotary_factor %v: want more than 0 and at most 1", ErrConfig, *s.Rope.Partial)
	case s.AttentionBias || s.MLPBias || s.ProjBias || s.Type == "bamba" && s.ConvBias != nil && !*s.ConvBias:
		return fmt.Errorf("%w: biases: want those of the convolutions and no other", ErrConfig)
	}
	if l := s.StepLimit; l != nil && (len(l) != 2 || string(l[0]) != "0.0" || !bytes.Contains(l[1], []byte("Infinity"))) {
		return fmt.Errorf("%w: time_step_limit %.60s: want none", ErrConfig, l)
	}
	for _, i := range s.AttentionLayers {
		if i < 0 || i >= s.Layers {
			return fmt.Errorf("%w: attention in layer %d of %d", ErrConfig, i, s.Layers)
		}
	}
	return nil
}

func (s settings) pattern() string {
	mixer := byte('M')
	if s.Type == "llama" {
		mixer = '*'
	}
	p := bytes.Repeat([]byte{mixer}, s.Layers)
	for _, i := range s.AttentionLayers {
		p[i] = '*'
	}
	return string(p)
}

// eos is the token that ends an answer, -1 where there is none.
func (s settings) eos() (int32, error) {
	if len(s.EOS) == 0 || string(s.EOS) == "null" {
		return -1, nil
	}
	var one int32
	var many []int32
	switch {
	case json.Unmarshal(s.EOS, &one) == nil:
		return one, nil
	case json.Unmarshal(s.EOS, &many) == nil && len(many) == 1:
		return many[0], nil
	}
	return 0, fmt.Errorf("%w: eos_token_id %.40s: want one token", ErrConfig, s.EOS)
}

// unitsOf is into how many equal units n heads go, each within one of shared: at least
// four of them where that is possible, so that TP 4 is.
func unitsOf(n, shared int) int {
	for units := shared; units < n; units += shared {
		if units >= 4 && n%units == 0 {
			return units
		}
	}
	return n
}

// weightFiles are the files of a directory that hold weights.
func weightFiles(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "model*.safetensors"))
	if err == nil && len(files) == 0 {
		err = errors.New("no model*.safetensors")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: model directory %s: %w", ErrConfig, dir, err)
	}
	return files, nil
}

// digest is that of config.json and all weights.
func digest(dir string) (sum [sha256.Size]byte, err error) {
	files, err := weightFiles(dir)
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	for _, name := range append([]string{filepath.Join(dir, "config.json")}, files...) {
		f, err := os.Open(name)
		if err != nil {
			return sum, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		n, err := io.Copy(h, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return sum, fmt.Errorf("%w: read %s: %w", ErrConfig, name, err)
		}
		fmt.Fprintf(h, "|%d|", n)
	}
	h.Sum(sum[:0])
	return sum, nil
}
