package cmd

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/demo"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/plugins/host"
)

// newDemoRouterCmd is the external control plane of the demo: all that it knows of the
// cluster is how to start the plugin.
func newDemoRouterCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "router -- PLUGIN ARG...",
		Short:  "Place the requests that come on stdin, through a plugin",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			ctx, cancel := lifeline.Context(cmd.Context())
			defer cancel()
			h, err := host.Open(ctx, host.Config{Command: args, Stderr: cmd.ErrOrStderr()})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, h.Close()) }()
			return demo.Route(ctx, h.Cluster(), h.Handoff(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
