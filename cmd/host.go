package cmd

import (
	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/dev/hosts"
	"github.com/batonkv/baton/lifeline"
)

func newHostCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "host",
		Short: "Be the first process of what stands for a host, which tests start",
		Long: "The first process of a network, process numbers and mounts of their own, which stand for a\n" +
			"host. What makes such hosts starts it; its end is the end of all that runs there.",
		Args:   noArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lifeline.Watch() == nil {
				return &UsageError{Why: "host: nobody started this process to be a host",
					Hint: "it is started where hosts are made on one machine"}
			}
			return hosts.Serve(cmd.Context())
		},
	}
}
