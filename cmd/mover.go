package cmd

import (
	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/sidecar"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer/mover"
)

func newMoverCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "mover",
		Short: "Copy engine memory for a sidecar, which starts this itself",
		Long: "The process that maps the memory of a sidecar's engine and copies. A sidecar starts its\n" +
			"movers and starts them again when they die; its pid is in the sidecar's log and metrics.\n" +
			"It ends with its sidecar, after the copy that it is in. With the argument wire it brings\n" +
			"chunks of staging memory from and to one group of another host.",
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{sidecar.WireArg},
		Hidden:    true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if lifeline.Watch() == nil {
				return &UsageError{Why: "mover: no sidecar started this process",
					Hint: "run \"baton sidecar\": it starts its mover itself"}
			}
			if len(args) > 0 {
				return mover.ServeWire(cmd.Context(), lifeline.FirstExtra, sidecar.OpenWire)
			}
			return mover.Serve(cmd.Context(), lifeline.FirstExtra)
		},
	}
}
