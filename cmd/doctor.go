package cmd

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/doctor"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

const doctorLong = `Ask every sidecar of a cluster how its rank reads from ranks of other groups: by which
transport, why by that one, how fast, and how fast it should be. Links that no hand-off has
needed yet are opened, and those that are staged are measured, while they are idle: some 20 MB
each. Expected is what the host, or its network interface, does at the same time by itself; less
than a quarter of it is degraded.

With names, the sidecars of those groups alone are asked.

Age is that of the figures: a link that hand-offs use is not measured meanwhile. Only wire movers
are measured; a local mover (baton mover) that stands still shows in hand-offs, not here.

Exit code 0: all is well. 1: a link is degraded or broken, or was not measured in time, or a
sidecar does not answer and is in discovery still, or a group is not ready: not every rank has
attached.`

// doctorQuiet is how long doctor waits before it says that it does.
const doctorQuiet = 3 * time.Second

func newDoctorCmd() *cobra.Command {
	var c connection
	var output string
	var known bool
	cmd := &cobra.Command{
		Use:   "doctor [GROUP...]",
		Short: "Measure the links between ranks, say what is wrong and what to do",
		Long:  doctorLong,
		Example: `  baton doctor
  baton doctor decode-0
  baton doctor -o json | jq '.links[] | select(.verdict != "good")'`,
		Args: groupNames("baton doctor, without a name, asks them all"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := textOrJSON(output); err != nil {
				return err
			}
			router, rest, err := c.open(cmd)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, router.Close(), rest.Close()) }()
			r := doctor.Report{Known: known}
			defer time.AfterFunc(doctorQuiet, func() {
				fmt.Fprintln(cmd.ErrOrStderr(), "waiting for answers: what is measured takes up to 30 s, a sidecar that hangs 20 s")
			}).Stop()
			if r.Asked, err = router.Links(cmd.Context(), control.LinksQuery{Probe: !known, Meet: !known}, args); err != nil {
				if errors.Is(err, handoff.ErrGroup) {
					return unknownGroup(cmd.Context(), router.Cluster(), args, err)
				}
				return c.explain(err)
			}
			for _, a := range r.Asked {
				if a.Record.Role != discovery.Prefill {
					r.Readers++
				}
			}
			write := r.Text
			if output == "json" {
				write = r.JSON
			}
			return errors.Join(write(cmd.OutOrStdout()), r.Verdict())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().BoolVar(&known, "known", false, "say what is known: open and measure nothing")
	c.bind(cmd)
	return cmd
}
