package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/bench"
	"github.com/batonkv/baton/cmd/bench/gpu"
)

func newBenchGPUCmd() *cobra.Command {
	var save string
	var m measuring
	o := gpu.Options{}
	cmd := &cobra.Command{
		Use:   "gpu",
		Short: "Measure copies between two GPUs beside one large copy between them",
		Long: `Measure copies between two GPUs of this machine: processes of their own hold the memory,
as engines do, a mover pulls it from GPU 0 to GPU 1, and one flat copy between the two is
measured in turn; GPU 0 is packed into host memory and unpacked beside flat copies of the same
direction. It takes about a minute, and some 10 GB of each GPU.`,
		Example: `  baton bench gpu
  baton bench gpu --rounds 31 --save gpu.json
  baton bench gpu --only gpu/host
  baton bench gpu --every 100ms --for 10s --tokens 8192    # beside an engine that is watched`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := errors.Join(m.check(), o.Check()); err != nil {
				return &UsageError{Why: err.Error()}
			}
			o.Rounds = m.rounds
			if o.Binary, err = os.Executable(); err != nil {
				return err
			}
			o.Progress = func(what string) { fmt.Fprintln(cmd.ErrOrStderr(), "measuring", what) }
			command := benchGPUCommand(o)
			o.Save = func(r bench.Report) error {
				r.Command = command
				return saveReport(save, r)
			}
			r, err := gpu.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			r.Command = command
			return m.show(cmd, r)
		},
	}
	m.flags(cmd)
	cmd.Flags().BoolVar(&o.Variants, "variants", false, "measure every way of submitting copies, in place of the rows")
	cmd.Flags().StringSliceVar(&o.Only, "only", nil, "measure only rows whose `names` begin so, such as gpu/host")
	cmd.Flags().DurationVar(&o.Every, "every", 0, "in place of the rows, begin a hand-off at this `interval`; 0: the rows")
	cmd.Flags().DurationVar(&o.For, "for", 5*time.Second, "with --every, how long")
	cmd.Flags().Int32Var(&o.Tokens, "tokens", 1024, "with --every, tokens of a hand-off, 40 KiB each")
	cmd.Flags().StringVar(&save, "save", "", "write what there is to this `file` after each row, as JSON")
	cmd.AddCommand(&cobra.Command{Use: "owner", Hidden: true, Args: noArgs,
		Short: "Own GPU memory for the bench, which starts this itself",
		RunE:  func(*cobra.Command, []string) error { return gpu.Own() }})
	return cmd
}

// benchGPUCommand is how the same is measured again.
func benchGPUCommand(o gpu.Options) string {
	if o.Every > 0 {
		return fmt.Sprintf("baton bench gpu --every %v --for %v --tokens %d", o.Every, o.For, o.Tokens)
	}
	command := fmt.Sprintf("baton bench gpu --rounds %d", o.Rounds)
	if o.Variants {
		command += " --variants"
	}
	if len(o.Only) > 0 {
		command += " --only " + strings.Join(o.Only, ",")
	}
	return command
}

// saveReport replaces the file path, so that it is whole at any instant.
func saveReport(path string, r bench.Report) error {
	if path == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
