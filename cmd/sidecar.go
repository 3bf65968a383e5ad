package cmd

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/cmd/sidecar"
)

func newSidecarCmd() *cobra.Command {
	c := config.Default()
	var file string
	var check bool
	cmd := &cobra.Command{
		Use:   "sidecar [--config FILE]",
		Short: "Run the sidecar of one rank",
		Long: `Run the sidecar of one rank: it serves the engine on unix sockets in run-dir, other
sidecars and control planes on listen, and starts the mover that copies.

Every key of the file has a flag of the same name, which wins; adapters has none.
All keys are checked before anything is opened, and so are the certificate, the programs of
adapters, the parts of built-in adapters and the paths of NIXL that are named; --check does only
that. An adapter with a program checks its own part, config, when the sidecar is up: one that
refuses it is an error in the log and stays down, and the sidecar works without it. One that
fails is started again, after 0.2 s and then twice as long each time, up to 30 s.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(config.Load(file, cmd.Flags(), &c), sidecar.Check(cmd.Context(), &c)); err != nil {
				return err
			}
			own, err := sidecar.Certificate(&c)
			if err != nil {
				return err
			}
			if check {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "nothing is wrong with the configuration of %s\n", own.Identity)
				return err
			}
			log, err := config.NewLogger(cmd.ErrOrStderr(), c.LogLevel, c.LogFormat)
			if err != nil {
				return err
			}
			slog.SetDefault(log)
			return sidecar.Run(cmd.Context(), c, own, log.With("group", c.Group, "rank", c.Rank))
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "YAML `file`")
	cmd.Flags().BoolVar(&check, "check", false, "check the configuration, and start nothing")
	config.Bind(cmd.Flags(), &c)
	return cmd
}
