package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/models"
	"github.com/batonkv/baton/transfer/planview"
)

// planOutputs are the values of --output.
var planOutputs = []string{"table", "json", "svg"}

// planFlags are the flags of `baton plan`.
type planFlags struct {
	model, boxes, from, to, dtype, output string
	tokens, block                         int32
	list                                  bool
}

func newPlanCmd() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan (--model NAME --from SIDE --to SIDE | --boxes FILE)",
		Short: "Explain a re-shard: who sends what to whom, in how many copies",
		Long: `Explain a re-shard without touching a GPU: which rank pulls which layers and heads
from which, how many bytes, and in how many strided copies.

A side is tp=N,pp=N,ep=N,expt_tp=N with any of block=N, dtype=D, order=planes|layers|
layerblocks|blocks, heads=first|last, columns=N for how its engine keeps memory.

A file of --boxes says what each rank holds, as half-open spans of layers and units:

  states:
    - {name: attn.k, paging: block, layers: 2, units: 2, elems: 8}
  source:
    - {state: attn.k, rank: 0, layers: [0, 2], units: [0, 2]}
  destination:
    - {state: attn.k, rank: 0, layers: [0, 2], units: [0, 2], rows: 16}`,
		Example: `  baton plan --model llama-3.1-70b --from tp=4 --to tp=2,pp=2 --tokens 8192
  baton plan --model nemotron-h-8b --from tp=2,block=16 --to tp=1,block=64 -o json
  baton plan --model llama-3.1-70b --from tp=4 --to tp=2,pp=2 -o svg > plan.svg
  baton plan --boxes group.yaml --tokens 1000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, p := range [][2]string{{"model", "boxes"}, {"model", "list"}, {"boxes", "list"}, {"boxes", "from"}, {"boxes", "to"}} {
				if cmd.Flags().Changed(p[0]) && cmd.Flags().Changed(p[1]) {
					return &UsageError{Why: fmt.Sprintf("--%s and --%s are both given: want one", p[0], p[1]), Hint: "baton plan --help shows examples"}
				}
			}
			return planError(f.run(cmd.OutOrStdout()))
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.model, "model", "", "a published model, as --list shows them")
	fs.StringVar(&f.boxes, "boxes", "", "a YAML `file` of states and boxes instead of a model; - is stdin")
	fs.StringVar(&f.from, "from", "tp=1", "the group that holds the state")
	fs.StringVar(&f.to, "to", "tp=1", "the group that takes it")
	fs.Int32Var(&f.tokens, "tokens", 8192, "tokens of the request")
	fs.Int32Var(&f.block, "block", 64, "tokens of a block, where a side does not say")
	fs.StringVar(&f.dtype, "dtype", "bf16", "element type, where a side does not say: bf16, fp16, fp32, fp8_e4m3, u8; recurrent state is fp32")
	fs.StringVarP(&f.output, "output", "o", "table", "table, json or svg (a picture: who sends what to whom)")
	fs.BoolVar(&f.list, "list", false, "list the models and exit")
	return cmd
}

// planError tells mistakes in the call from what went wrong later.
func planError(err error) error {
	for _, usage := range []error{planview.ErrInput, models.ErrUnknown, models.ErrState, layout.ErrGeometry} {
		if errors.Is(err, usage) {
			return &UsageError{Why: err.Error(), Hint: "baton plan --help shows examples"}
		}
	}
	return err
}

func (f *planFlags) run(w io.Writer) error {
	if !slices.Contains(planOutputs, f.output) {
		return fmt.Errorf("%w: --output %q: want %s", planview.ErrInput, f.output, strings.Join(planOutputs, ", "))
	}
	if f.list {
		return listModels(w)
	}
	if f.block < 1 || f.block > layout.MaxRows {
		return fmt.Errorf("%w: --block %d: want 1 to %d", planview.ErrInput, f.block, layout.MaxRows)
	}
	if f.tokens < 1 || f.tokens > planview.MaxTokens {
		return fmt.Errorf("%w: --tokens %d: want 1 to %d", planview.ErrInput, f.tokens, planview.MaxTokens)
	}
	dt, err := layout.ParseDType(f.dtype)
	if err != nil {
		return fmt.Errorf("%w: --dtype: %w", planview.ErrInput, err)
	}
	g, err := f.geometry(planview.Default{Block: f.block, KV: dt})
	if err != nil {
		return err
	}
	v, err := planview.Explain(g, f.tokens)
	if err != nil {
		return err
	}
	switch f.output {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return errors.Join(e.Encode(v), v.Check())
	case "svg":
		return errors.Join(v.SVG(w), v.Check())
	}
	return errors.Join(v.Table(w), v.Check())
}

func (f *planFlags) geometry(d planview.Default) (planview.Geometry, error) {
	if f.boxes != "" {
		b, err := readBoxes(f.boxes)
		if err != nil {
			return planview.Geometry{}, err
		}
		return planview.OfBoxes(b, d, f.tokens)
	}
	if f.model == "" {
		return planview.Geometry{}, fmt.Errorf("%w: no model: give --model NAME (--list shows them) or --boxes FILE", planview.ErrInput)
	}
	m, err := models.ByName(f.model)
	if err != nil {
		return planview.Geometry{}, err
	}
	from, err := planview.ParseSide(f.from, d)
	if err != nil {
		return planview.Geometry{}, fmt.Errorf("--from: %w", err)
	}
	to, err := planview.ParseSide(f.to, d)
	if err != nil {
		return planview.Geometry{}, fmt.Errorf("--to: %w", err)
	}
	return planview.OfModel(m, from, to, f.tokens)
}

// readBoxes reads at most one byte more than a file of boxes may have.
func readBoxes(path string) ([]byte, error) {
	in := io.Reader(os.Stdin)
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("%w: --boxes: %w", planview.ErrInput, err)
		}
		defer file.Close()
		in = file
	}
	b, err := io.ReadAll(io.LimitReader(in, planview.MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("--boxes %s: %w", path, err)
	}
	return b, nil
}

func listModels(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "model\tlayers\tstate")
	for _, m := range models.All() {
		state := ""
		add := func(format string, args ...any) {
			if state != "" {
				state += ", "
			}
			state += fmt.Sprintf(format, args...)
		}
		if a := m.Desc.Attention; a != nil {
			add("%d attention (%d KV heads of %d)", a.Layers, a.Heads, a.Dim)
		}
		if l := m.Desc.Latent; l != nil {
			add("%d MLA (latent of %d)", l.Layers, l.Dim)
		}
		if s := m.Desc.Mamba; s != nil {
			groups := "1 group"
			if s.Groups != 1 {
				groups = fmt.Sprintf("%d groups", s.Groups)
			}
			add("%d Mamba2 (%d heads, %s)", s.Layers, s.Heads, groups)
		}
		for _, l := range m.Lacks {
			add("lacks %s", l)
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\n", m.Slug, m.Layers, state)
	}
	return tw.Flush()
}
