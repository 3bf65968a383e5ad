package planview

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/batonkv/baton/transfer/layout"
	"go.yaml.in/yaml/v3"
)

// MaxFile bounds a file of boxes.
const MaxFile = 8 << 20

type boxFile struct {
	Model       string     `yaml:"model"`
	States      []boxState `yaml:"states"`
	Source      []boxShard `yaml:"source"`
	Destination []boxShard `yaml:"destination"`
}

type boxState struct {
	Name   string `yaml:"name"`
	Paging string `yaml:"paging"` // block or request
	Layers int32  `yaml:"layers"`
	Units  int32  `yaml:"units"`
	Elems  int32  `yaml:"elems"`
}

type boxShard struct {
	State  string   `yaml:"state"`
	Rank   int32    `yaml:"rank"`
	Layers [2]int32 `yaml:"layers"` // first and one after the last
	Units  [2]int32 `yaml:"units"`
	Rows   int32    `yaml:"rows"`  // 0: the given block size, or 1 per request
	Items  int32    `yaml:"items"` // 0: as many as the tokens need
	DType  string   `yaml:"dtype"` // "": the given one
	View   *boxView `yaml:"view"`  // absent: dense [layer, item, row, unit, element] in a buffer of its own
}

type boxView struct {
	Buffer uint32 `yaml:"buffer"`
	Off    int64  `yaml:"off"`
	Layer  int64  `yaml:"layer"`
	Item   int64  `yaml:"item"`
	Row    int64  `yaml:"row"`
	Unit   int64  `yaml:"unit"`
	Elem   int64  `yaml:"elem"`
}

// OfBoxes reads a YAML file of boxes: states, source and destination, as the
// engines would state them.
func OfBoxes(file []byte, d Default, tokens int32) (Geometry, error) {
	g := Geometry{From: "source", To: "destination"}
	if err := checkTokens(tokens); err != nil {
		return g, err
	}
	if len(file) > MaxFile {
		return g, fmt.Errorf("%w: boxes of %d bytes: at most %d", ErrInput, len(file), MaxFile)
	}
	var f boxFile
	dec := yaml.NewDecoder(bytes.NewReader(file))
	dec.KnownFields(true)
	if err := dec.Decode(&f); err != nil {
		if errors.Is(err, io.EOF) {
			return g, fmt.Errorf("%w: boxes: the file is empty", ErrInput)
		}
		return g, fmt.Errorf("%w: boxes: %s", ErrInput, inWords(err))
	}
	if g.Name = f.Model; strings.ContainsFunc(g.Name, unprintable) {
		return g, fmt.Errorf("%w: model %q: want printable characters", ErrInput, g.Name)
	}
	if g.Name == "" {
		g.Name = "boxes"
	}
	index := map[string]int32{}
	for i, s := range f.States {
		if strings.ContainsFunc(s.Name, unprintable) {
			return g, fmt.Errorf("%w: states[%d]: name %q: want printable characters", ErrInput, i, s.Name)
		}
		p := map[string]layout.Paging{"block": layout.PerBlock, "request": layout.PerRequest}[s.Paging]
		if p == 0 {
			return g, fmt.Errorf("%w: states[%d] %s: paging %q: want block or request", ErrInput, i, s.Name, s.Paging)
		}
		index[s.Name] = int32(i)
		g.Model.States = append(g.Model.States, layout.State{Name: s.Name, Paging: p, Layers: s.Layers, Units: s.Units, Elems: s.Elems})
	}
	if err := g.Model.Check(nil); err != nil {
		return g, fmt.Errorf("%w: %w", ErrInput, err)
	}
	var err error
	if g.Src, err = g.shards("source", f.Source, index, d, tokens); err != nil {
		return g, err
	}
	g.Dst, err = g.shards("destination", f.Destination, index, d, tokens)
	return g, err
}

// unprintable characters of a file would steer the terminal that shows them.
func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// known are the keys of each struct of a file, as the decoder names the struct.
var known = map[string]string{
	"planview.boxFile":  "model, states, source, destination",
	"planview.boxState": "name, paging, layers, units, elems",
	"planview.boxShard": "state, rank, layers, units, rows, items, dtype, view",
	"planview.boxView":  "buffer, off, layer, item, row, unit, elem",
}

// inWords is a decoder's error without the names of Go types.
func inWords(err error) string {
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", ""), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:")
	for typ, keys := range known {
		text = strings.ReplaceAll(text, "not found in type "+typ, "is unknown: want one of "+keys)
		text = strings.ReplaceAll(text, "into "+typ, "where a mapping of "+keys+" is wanted")
		text = strings.ReplaceAll(text, "into []"+typ, "where a list is wanted")
	}
	for typ, what := range map[string]string{"[2]int32": "a span such as [0, 2]", "int32": "a whole number", "uint32": "a whole number from 0", "int64": "a whole number"} {
		text = strings.ReplaceAll(text, "into "+typ, "where "+what+" is wanted")
	}
	text = strings.ReplaceAll(strings.ReplaceAll(text, "cannot unmarshal ", ""), "field ", "key ")
	return strings.Join(strings.Fields(text), " ")
}

func (g *Geometry) shards(where string, in []boxShard, index map[string]int32, d Default, tokens int32) ([]layout.Shard, error) {
	var out []layout.Shard
	for i, b := range in {
		state, ok := index[b.State]
		if !ok {
			return nil, fmt.Errorf("%w: %s[%d]: state %q is not among the states of the file", ErrInput, where, i, b.State)
		}
		st := &g.Model.States[state]
		s := layout.Shard{State: state, Rank: layout.Rank(b.Rank), Rows: b.Rows, Items: b.Items, DType: d.KV,
			Box: layout.Box{Layers: layout.Span{Lo: b.Layers[0], Hi: b.Layers[1]}, Units: layout.Span{Lo: b.Units[0], Hi: b.Units[1]}}}
		if b.DType != "" {
			dt, err := layout.ParseDType(b.DType)
			if err != nil {
				return nil, fmt.Errorf("%w: %s[%d]: %w", ErrInput, where, i, err)
			}
			s.DType = dt
		}
		if st.Paging == layout.PerRequest {
			s.Rows, s.Items = max(s.Rows, 1), max(s.Items, 2)
		} else if s.Rows == 0 {
			s.Rows = d.Block
		}
		if s.Items == 0 && s.Rows > 0 {
			s.Items = 2*((tokens+s.Rows-1)/s.Rows) + 1
		}
		if v := b.View; v != nil {
			s.View = layout.View(*v)
		} else {
			s.View = dense(&s, st.Elems, uint32(i))
		}
		out = append(out, s)
	}
	if err := g.Model.Check(out); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrInput, where, err)
	}
	return out, nil
}

// dense is [layer, item, row, unit, element] without gaps. Numbers that overflow
// give strides that Check refuses.
func dense(s *layout.Shard, elems int32, buffer uint32) layout.View {
	v := layout.View{Buffer: buffer % layout.MaxBuffers, Elem: s.DType.Size()}
	v.Unit = v.Elem * int64(elems)
	v.Row = times(v.Unit, s.Box.Units.Len())
	v.Item = times(v.Row, s.Rows)
	v.Layer = times(v.Item, s.Items)
	return v
}

func times(a int64, n int32) int64 {
	if n <= 0 || a > (1<<61)/int64(n) {
		return 1 << 61
	}
	return a * int64(n)
}
