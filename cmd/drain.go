package cmd

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/steer"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/handoff"
)

func newDrainCmd() *cobra.Command {
	var c connection
	var o steer.DrainOptions
	cmd := &cobra.Command{
		Use:   "drain GROUP",
		Short: "Let a group finish what it has, and say when it is safe to stop",
		Long: `Stop a group's intake and wait until nothing is left that a stop would lose: no import
that has not ended, no export that somebody may still fetch. The last line is then "safe
to stop". The group keeps draining when this command ends before that; --resume has it
take work again.

Exit code 0: safe to stop. 3: not yet, and --timeout is over. 130: Ctrl-C.`,
		Example: `  baton drain decode-0
  baton drain decode-0 --timeout 5m && systemctl stop decode-0
  baton drain decode-0 --resume`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || discovery.CheckName("group", args[0]) != nil {
				return &UsageError{Why: "drain: want the name of one group", Hint: "baton watch lists the groups; baton drain --help shows examples"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o.Group = args[0]
			if o.Timeout < 0 || o.Resume && o.Timeout > 0 {
				return &UsageError{Why: "--timeout " + o.Timeout.String() + ": want more than 0, and no --resume beside it"}
			}
			router, rest, err := c.open(cmd)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, router.Close(), rest.Close()) }()
			o.Progress = progress(cmd.ErrOrStderr())
			err = steer.Drain(cmd.Context(), router.Cluster(), o, cmd.OutOrStdout())
			if errors.Is(err, handoff.ErrGroup) {
				return unknownGroup(cmd.Context(), router.Cluster(), []string{o.Group}, err)
			}
			if errors.Is(err, steer.ErrNotSafe) {
				return &HintError{err, "it goes on draining: baton drain " + o.Group + " waits again, and with --resume it takes work again"}
			}
			return c.explain(err)
		},
	}
	cmd.Flags().BoolVar(&o.Resume, "resume", false, "have the group take work again")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", time.Duration(0), "how long to wait; 0: as long as it takes")
	c.bind(cmd)
	return cmd
}

// unknownGroup adds which groups there are.
func unknownGroup(ctx context.Context, c plugins.Cluster, named []string, err error) error {
	groups, failed := c.Groups(ctx)
	if failed != nil {
		return err
	}
	var there []string
	for _, g := range groups {
		there = append(there, g.Name)
	}
	for _, g := range named {
		if !slices.Contains(there, g) {
			return &HintError{err, near(g, there)}
		}
	}
	return err
}
