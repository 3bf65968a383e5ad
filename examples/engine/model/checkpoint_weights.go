package model

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/batonkv/baton/examples/engine/safetensors"
)

// checkpoint is the weights of a directory, of which a rank reads its own parts. The
// first failure is kept and ends New: what is read after it is empty.
type checkpoint struct {
	family
	cfg     Config
	files   []*os.File
	tensors map[string]safetensors.Tensor
	err     error
}

// family is what models of one type call their weights.
type family struct{ mlp, feedNorm, final string }

var families = map[string]family{
	"llama": {mlp: "mlp", feedNorm: "post_attention_layernorm", final: "model.norm.weight"},
	"bamba": {mlp: "feed_forward", feedNorm: "pre_ff_layernorm", final: "model.final_layernorm.weight"},
}

// openCheckpoint reads the headers of the directory that c was loaded from.
func openCheckpoint(c Config) (*checkpoint, error) {
	s, err := readSettings(c.Dir)
	if err != nil {
		return nil, err
	}
	names, err := weightFiles(c.Dir)
	if err != nil {
		return nil, err
	}
	w := &checkpoint{family: families[s.Type], cfg: c, tensors: map[string]safetensors.Tensor{}}
	for _, name := range names {
		if err := w.open(name); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrConfig, name, err), w.close())
		}
	}
	if s.Tied {
		w.tensors["lm_head.weight"] = w.tensors["model.embed_tokens.weight"]
	}
	return w, nil
}

func (w *checkpoint) open(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	w.files = append(w.files, f)
	st, err := f.Stat()
	if err != nil {
		return err
	}
	tensors, err := safetensors.Read(f, st.Size())
	for name, t := range tensors {
		if _, twice := w.tensors[name]; twice {
			return fmt.Errorf("tensor %s is in another file too", name)
		}
		w.tensors[name] = t
	}
	return err
}

// close closes the files and returns the first failure of all.
func (w *checkpoint) close() error {
	err := w.err
	for _, f := range w.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// matrix is a tensor of a known shape, of which rows and columns are read.
type matrix struct {
	w           *checkpoint
	name        string
	t           safetensors.Tensor
	rows, width int
}

// matrix finds a tensor of rows of width; in the file they may be [rows, 1, width], as
// a convolution's, or [rows] where width is 1.
func (w *checkpoint) matrix(name string, rows, width int) matrix {
	t, ok := w.tensors[name]
	shape := slices.DeleteFunc(slices.Clone(t.Shape), func(n int64) bool { return n == 1 })
	want := slices.DeleteFunc([]int64{int64(rows), int64(width)}, func(n int64) bool { return n == 1 })
	if !ok || !slices.Equal(shape, want) {
		w.fail(fmt.Errorf("%w: tensor %s of shape %d: want %d, %d", ErrConfig, name, t.Shape, rows, width))
	}
	return matrix{w: w, name: name, t: t, rows: rows, width: width}
}

func (w *checkpoint) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// part is rows lo to hi.
func (m matrix) part(lo, hi int) []float32 { return m.floats(lo*m.width, hi*m.width) }

func (m matrix) all() []float32 { return m.part(0, m.rows) }

// columns is columns lo to hi of every row.
func (m matrix) columns(lo, hi int) []float32 {
	var out []float32
	for r := range m.rows {
		out = append(out, m.floats(r*m.width+lo, r*m.width+hi)...)
	}
	return out
}

func (m matrix) floats(lo, hi int) []float32 {
	if m.w.err != nil {
		return nil
	}
	v, err := m.t.Floats(int64(lo), int64(hi))
	if err != nil {
		m.w.fail(fmt.Errorf("%w: tensor %s: %w", ErrConfig, m.name, err))
	}
	return v
}

func (w *checkpoint) embed() []float32 {
	return w.matrix("model.embed_tokens.weight", int(w.cfg.Vocab), w.cfg.Hidden).all()
}

func (w *checkpoint) head() []float32 {
	return w.matrix("lm_head.weight", int(w.cfg.Vocab), w.cfg.Hidden).all()
}

func (w *checkpoint) norm(name string) []float32 { return w.matrix(name, w.cfg.Hidden, 1).all() }

func (w *checkpoint) layer(i int, name string) string {
	return fmt.Sprintf("model.layers.%d.%s", i, name)
}

// norms are the weights of the norms before a layer's mixer and before its MLP.
func (w *checkpoint) norms(i int) (mixer, feed []float32) {
	return w.norm(w.layer(i, "input_layernorm.weight")), w.norm(w.layer(i, w.feedNorm+".weight"))
}

// kvHead reads what makeKVHead draws: a KV head, and of its query heads those of shares.
func (w *checkpoint) kvHead(layer, head int, own [][2]int) kvHead {
	c := w.cfg
	d, group := c.HeadDim, c.QueryHeads/c.KVHeads*c.HeadDim
	at := func(name string, rows, width int) matrix {
		return w.matrix(w.layer(layer, "self_attn."+name+"_proj.weight"), rows, width)
	}
	q, o := at("q", c.QueryHeads*d, c.Hidden), at("o", c.Hidden, c.QueryHeads*d)
	out := kvHead{
		k: at("k", c.KVHeads*d, c.Hidden).part(head*d, (head+1)*d),
		v: at("v", c.KVHeads*d, c.Hidden).part(head*d, (head+1)*d),
	}
	for _, s := range own {
		lo, hi := head*group+s[0], head*group+s[1]
		out.shares = append(out.shares, queryUnit{q: q.part(lo, hi), o: o.columns(lo, hi)})
	}
	return out
}

// group reads what makeGroup draws. The in-projection's rows are z, x, B, C and dt, the
// convolution's channels x, B and C.
func (w *checkpoint) group(layer, group int, own [][2]int) ssmGroup {
	c := w.cfg
	hd, ds := c.SSMHeadDim, c.StateDim
	inner, all := c.SSMHeads*hd, c.Groups*ds
	name := func(n string) string { return w.layer(layer, "mamba."+n) }
	in := w.matrix(name("in_proj.weight"), 2*inner+2*all+c.SSMHeads, c.Hidden)
	conv, bias := w.matrix(name("conv1d.weight"), inner+2*all, c.Window), w.matrix(name("conv1d.bias"), inner+2*all, 1)
	norm, out := w.matrix(name("norm.weight"), inner, 1), w.matrix(name("out_proj.weight"), c.Hidden, inner)
	per := func(n string) matrix { return w.matrix(name(n), c.SSMHeads, 1) }
	b, cc := inner+group*ds, inner+all+group*ds // channels
	g := ssmGroup{b: in.part(inner+b, inner+b+ds), c: in.part(inner+cc, inner+cc+ds),
		convB: conv.part(b, b+ds), convC: conv.part(cc, cc+ds), biasB: bias.part(b, b+ds), biasC: bias.part(cc, cc+ds)}
	for _, s := range own {
		lo, hi := group*c.SSMHeads/c.Groups+s[0], group*c.SSMHeads/c.Groups+s[1] // heads
		x, to := lo*hd, hi*hd                                                    // channels
		u := ssmUnit{z: in.part(x, to), x: in.part(inner+x, inner+to), dt: in.part(2*inner+2*all+lo, 2*inner+2*all+hi),
			convX: conv.part(x, to), biasX: bias.part(x, to), norm: norm.part(x, to), out: out.columns(x, to),
			a: per("A_log").part(lo, hi), d: per("D").part(lo, hi), bias: per("dt_bias").part(lo, hi)}
		for i, v := range u.a {
			u.a[i] = float32(-math.Exp(float64(v)))
		}
		g.shares = append(g.shares, u)
	}
	return g
}

// mlp reads one group of columns.
func (w *checkpoint) mlp(layer, group int) mlpUnit {
	c := w.cfg
	name := func(n string) string { return w.layer(layer, w.family.mlp+"."+n+"_proj.weight") }
	all, lo, hi := c.MLPGroups*c.MLPColumns, group*c.MLPColumns, (group+1)*c.MLPColumns
	return mlpUnit{gate: w.matrix(name("gate"), all, c.Hidden).part(lo, hi), up: w.matrix(name("up"), all, c.Hidden).part(lo, hi),
		down: w.matrix(name("down"), c.Hidden, all).columns(lo, hi)}
}
