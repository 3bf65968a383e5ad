package cmd

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/demo"
	"github.com/batonkv/baton/lifeline"
)

func newDemoCmd() *cobra.Command {
	var f devFlags
	var o demo.Options
	var corrupt string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Hand real requests over between groups of different shape and check every token",
		Long: `Hand real requests over: bring up what dev does, run prompts through the prefill
group, import each into the decode group as a control plane would, and compare every
token with one engine that does both. Exit code 1 when one differs.`,
		Example: `  baton demo
  baton demo --inference-shards tp=4,role=prefill+tp=2,role=decode --model attention
  baton demo --inference-shards tp=2,role=prefill+tp=1,kv=fp16,state=bf16,role=decode --model gqa
  baton demo --sample --answers 3 --model mtp
  baton demo --kill decode-0/0
  baton demo --export-parts
  baton demo --via plugin
  baton demo --corrupt one-block
  baton demo --corrupt one-block --verify all`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []string{"kill", "corrupt", "via"} {
				if fl := cmd.Flags().Lookup(name); fl.Changed && fl.Value.String() == "" {
					return &UsageError{Why: fmt.Sprintf("--%s %q: is empty: name one, or leave the flag out", name, ""), Hint: cmd.CommandPath() + " --help lists the flags and their form"}
				}
			}
			var err error
			if o.Dev, err = f.options(cmd, corrupt); err != nil {
				return err
			}
			if err := o.Check(); err != nil {
				return &UsageError{Why: err.Error(), Hint: cmd.CommandPath() + " --help lists the flags and their form"}
			}
			ctx, cancel := lifeline.Context(cmd.Context())
			defer cancel()
			return demo.Run(ctx, o, cmd.OutOrStdout())
		},
	}
	f.bind(cmd)
	cmd.Flags().StringVar(&corrupt, "corrupt", "", "damage what decode imported, or with --verify what prefill exported: kv, state, head-swap, one-block or position; the check must find it")
	cmd.Flags().StringVar(&o.Kill, "kill", "", "kill the sidecar of `GROUP/RANK` in the middle of a hand-off, such as decode-0/0: the group goes on")
	cmd.Flags().BoolVar(&o.Parts, "export-parts", false, "let state leave in parts, a block at a time, while the rest of its prompt is computed")
	cmd.Flags().StringVar(&o.Via, "via", "", "who places the requests: plugin is an external process, by hashicorp/go-plugin alone (default: this one)")
	cmd.Flags().Int32Var(&o.MaxNew, "new", 24, "tokens of each answer, 1 to 4096")
	cmd.Flags().BoolVar(&o.Sample, "sample", false, "draw tokens with a seed for each prompt, and compare their logprobs too (default: the likeliest)")
	cmd.Flags().Int32Var(&o.Answers, "answers", 1, "answers for each prompt, all from one export, 1 to 64")
	cmd.Flags().DurationVar(&o.Deadline, "deadline", 30*time.Second, "how long one request may take, 100ms to 10m")
	cmd.AddCommand(newDemoRouterCmd())
	return cmd
}
