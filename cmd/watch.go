package cmd

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/cmd/steer"
)

func newWatchCmd() *cobra.Command {
	var c connection
	var o steer.WatchOptions
	var output string
	cmd := &cobra.Command{
		Use:   "watch [GROUP...]",
		Short: "Tell what happens in a cluster, live: who comes and goes, and every hand-off",
		Long: `Tell what happens in a cluster, a line each, until Ctrl-C: sidecars that come and go,
engines that attach, and what each group's leader tells of its hand-offs. Times are those
at which this command heard it.

It begins with what is there; --kept adds what leaders keep of the past. A stream that
breaks is begun again where it was, and a gap is told where notices may be missing.`,
		Example: `  baton watch
  baton watch decode-0 --kept
  baton watch -o json | jq 'select(.event == "failed")'`,
		Args: groupNames("baton watch, without a name, lists the groups"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := textOrJSON(output); err != nil {
				return err
			}
			router, rest, err := c.open(cmd)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, router.Close(), rest.Close()) }()
			o.Groups, o.JSON, o.Color = args, output == "json", terminal(cmd.OutOrStdout())
			o.Warn = func(group string, there []string) {
				if group == "" {
					fmt.Fprintln(cmd.ErrOrStderr(), "no sidecar is registered in this cluster; waiting")
					return
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "no group %s is there: %s; waiting for it\n", group, near(group, there))
			}
			stop, err := whileRead(cmd.OutOrStdout())
			if err != nil {
				return err
			}
			defer stop()
			return c.explain(steer.Watch(cmd.Context(), router.Cluster(), router.Handoff(), o, cmd.OutOrStdout()))
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json (an object a line)")
	cmd.Flags().BoolVar(&o.Kept, "kept", false, "first what each leader keeps of the past")
	c.bind(cmd)
	return cmd
}

// near says which group may be meant, and which are there.
func near(group string, there []string) string {
	s := "nobody is"
	if len(there) > 0 {
		s = "there are " + strings.Join(there[:min(len(there), 16)], ", ")
	}
	if n := config.Nearest(group, there); n != "" {
		s = "did you mean " + n + "? " + s
	}
	return s
}
