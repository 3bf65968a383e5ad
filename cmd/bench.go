package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/bench"
)

func newBenchCmd() *cobra.Command {
	var only string
	var m measuring
	o := bench.Options{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure Baton beside its baselines, in one run",
		Long: `Measure Baton beside its baselines: the two take turns in one run, and the ratio of
each pair is what counts. Rows: ` + rowNames() + `.

Exit code 0: it was measured, whether targets were met or not, since they depend on the
machine. With --strict, 1: a row missed its target.`,
		Example: `  baton bench
  baton bench --row plan --strict
  baton bench --row shm --rounds 31 -o json > shm.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			err := noArgs(cmd, args)
			if u, ok := errors.AsType[*UsageError](err); ok && checkRow(args[0]) == nil {
				u.Hint = "baton bench --row " + args[0]
			}
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := m.check(); err != nil {
				return err
			}
			o.Rounds = m.rounds
			if err := checkRow(only); err != nil {
				return err
			}
			if o.Binary, err = os.Executable(); err != nil {
				return err
			}
			o.Progress = func(what string) { fmt.Fprintln(cmd.ErrOrStderr(), "measuring", what) }
			r, err := bench.Run(cmd.Context(), only, o)
			if err != nil {
				return err
			}
			r.Command = "baton bench --rounds " + fmt.Sprint(o.Rounds)
			if only != "" {
				r.Command += " --row " + only
			}
			return m.show(cmd, r)
		},
	}
	cmd.Flags().StringVar(&only, "row", "", "rows whose name matches this `pattern`; all when empty")
	m.flags(cmd)
	cmd.AddCommand(newSimCmd(), newBenchGPUCmd())
	return cmd
}

// measuring is what commands that measure have alike.
type measuring struct {
	output string
	rounds int
	strict bool
}

func (m *measuring) flags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&m.rounds, "rounds", 21, "pairs of each row")
	cmd.Flags().StringVarP(&m.output, "output", "o", "text", "text, markdown, or json with every sample")
	cmd.Flags().BoolVar(&m.strict, "strict", false, "fail, with exit code 1, when a row misses its target")
}

func (m *measuring) check() error {
	if m.output != "text" && m.output != "json" && m.output != "markdown" {
		return &UsageError{Why: fmt.Sprintf("-o %q: want text, markdown or json", m.output)}
	}
	if m.rounds < 1 || m.rounds > 1000 {
		return &UsageError{Why: fmt.Sprintf("--rounds %d: want 1 to 1000", m.rounds)}
	}
	return nil
}

// show prints what was measured. With --strict a target that was missed is an error.
func (m *measuring) show(cmd *cobra.Command, r bench.Report) (err error) {
	switch m.output {
	case "text":
		r.Print(cmd.OutOrStdout())
	case "markdown":
		r.Markdown(cmd.OutOrStdout())
	default:
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", " ")
		err = e.Encode(r)
	}
	if m.strict {
		err = errors.Join(err, r.Missed())
	}
	return err
}

// checkRow wants a pattern that some row matches.
func checkRow(only string) error {
	re, err := regexp.Compile(only)
	if err != nil {
		return &UsageError{Why: fmt.Sprintf("--row %q: want a regular expression, such as shm or shm|plan", only)}
	}
	if !slices.ContainsFunc(bench.Rows(), func(r bench.Row) bool { return re.MatchString(r.Name) }) {
		name, _, _ := strings.Cut(only, "/")
		if slices.ContainsFunc(bench.Rows(), func(r bench.Row) bool { return r.Name == name }) {
			return &UsageError{Why: fmt.Sprintf("--row %q: is one result of the row %s, which is measured whole: want --row %s", only, name, name)}
		}
		return &UsageError{Why: fmt.Sprintf("--row %q: no row matches: rows are %s", only, rowNames())}
	}
	return nil
}

func rowNames() string {
	var names []string
	for _, r := range bench.Rows() {
		names = append(names, r.Name)
	}
	return strings.Join(names, ", ")
}
