package cmd

import (
	"github.com/spf13/cobra"

	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer/mover"
)

func newMoverCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "mover",
		Short: "Copy engine memory for a sidecar, which starts this itself",
		Long: "The process that maps the memory of a sidecar's engine and copies. A sidecar starts its\n" +
			"movers and starts them again when they die; its pid is in the sidecar's log and metrics.\n" +
			"It ends with its sidecar, after the copy that it is in.",
		Args:   noArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lifeline.Watch() == nil {
				return &UsageError{Why: "mover: no sidecar started this process",
					Hint: "run \"baton sidecar\": it starts its mover itself"}
			}
			return mover.Serve(cmd.Context(), lifeline.FirstExtra)
		},
	}
}
