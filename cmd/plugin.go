package cmd

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/plugins/serve"
)

func newPluginCmd() *cobra.Command {
	var c connection
	cmd := &cobra.Command{
		Use:   "plugin (--config FILE | --cluster NAME --etcd.endpoints HOST:PORT --tls.ca FILE --tls.cert FILE --tls.key FILE)",
		Short: "Serve a control plane, which starts this itself",
		Long: `The process through which a control plane steers sidecars: a hashicorp/go-plugin server
of the services in proto/plugin/v1. Its host starts it, speaks gRPC with it on a unix
socket, and ends it; it ends with its host. It keeps nothing: pins, imports and drains live
in the sidecars, so it may be killed at any instant.

It finds a group's leader by etcd, or with --addr and --group it is told. The certificate
is of control/NAME: what a sidecar logs of a call has that name.

Every key of the file has a flag of the same name, which wins. docs/PLUGINS.md says how to
write a host, in any language.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !serve.Launched() {
				return &UsageError{Why: "plugin: no host started this process: it is the plugin of a control plane, which runs it by hashicorp/go-plugin and speaks gRPC with it",
					Hint: "in Go call host.Open of github.com/batonkv/baton/plugins/host, in another language see docs/PLUGINS.md; to look at a cluster by hand use baton watch"}
			}
			if err := c.load(cmd); err != nil {
				return err
			}
			return runPlugin(cmd, &c)
		},
	}
	c.bind(cmd)
	return cmd
}

func runPlugin(cmd *cobra.Command, c *connection) error {
	level, err := cmd.Flags().GetString("log-level")
	if err != nil {
		return err
	}
	l, err := config.ParseLevel(level)
	if err != nil {
		return err
	}
	log := serve.NewLog(cmd.ErrOrStderr(), l)
	r, err := c.later(log)
	if err != nil {
		return err
	}
	defer r.Close()
	// An interrupt or hang-up of a terminal reaches host and plugin alike, and is the host's
	// to act on: what ends a plugin is its host, or SIGTERM.
	ctx, stop := signal.NotifyContext(context.WithoutCancel(cmd.Context()), syscall.SIGTERM)
	defer stop()
	hangUp := make(chan os.Signal, 1)
	signal.Notify(hangUp, syscall.SIGHUP)
	defer signal.Stop(hangUp)
	return serve.Run(ctx, serve.Config{Handoff: r.Handoff(), Reshard: r.Reshard(), Cluster: r.Cluster(), Log: log})
}
