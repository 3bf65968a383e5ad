package cmd

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/demo"
	"github.com/batonkv/baton/examples/engine/model"
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
  baton demo --corrupt one-block`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := f.options(cmd)
			if err != nil {
				return err
			}
			d.Corrupt = corrupt
			o.Dev = d
			ctx, cancel := lifeline.Context(cmd.Context())
			defer cancel()
			err = demo.Run(ctx, o, cmd.OutOrStdout())
			if errors.Is(err, model.ErrConfig) {
				return &UsageError{Why: err.Error(), Hint: "baton demo --help lists the flags"}
			}
			return err
		},
	}
	f.bind(cmd)
	cmd.Flags().StringVar(&corrupt, "corrupt", "", "damage what decode imported: kv, state, head-swap, one-block or position; the check must find it")
	cmd.Flags().Int32Var(&o.MaxNew, "new", 24, "tokens to generate for each prompt")
	cmd.Flags().DurationVar(&o.Deadline, "deadline", 30*time.Second, "how long one request may take")
	return cmd
}
