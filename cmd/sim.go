package cmd

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/sidecar/sim"
)

// maxMinutes is a week.
const maxMinutes = 60 * 24 * 7

func newSimCmd() *cobra.Command {
	var (
		o       sim.Options
		minutes float64
		trace   bool
		cover   bool
		need    uint64
	)
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Play the hand-off protocol in virtual time, with everything that fails",
		Long: `Play whole clusters of sidecars in virtual time, one schedule for each seed: the machines
that a sidecar runs, over networks, clocks, movers, engines and discovery that fail, with
processes that crash and restart. A schedule that breaks a promise is printed with its
seed, and --trace shows what happened in it.`,
		Example: `  baton bench sim --minutes 5
  baton bench sim --seed 4711 --trace`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !(minutes >= 0 && minutes <= maxMinutes): // NaN too
				return &UsageError{Why: fmt.Sprintf("--minutes %v: want 0 to %d", minutes, maxMinutes)}
			case o.Keep < 0:
				return &UsageError{Why: fmt.Sprintf("--keep-going %d: want 0 or more", o.Keep)}
			case trace:
				for _, other := range []string{"minutes", "schedules", "keep-going", "coverage", "need"} {
					if cmd.Flags().Changed(other) {
						return &UsageError{Why: fmt.Sprintf("--trace and --%s are both given: --trace plays the schedule of --seed alone", other)}
					}
				}
				if bad := sim.Replay(o.Seed, cmd.OutOrStdout()); bad != "" {
					return fmt.Errorf("seed %d: %s", o.Seed, bad)
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "seed %d: every promise was kept\n", o.Seed)
				return err
			}
			o.Limit = time.Duration(minutes * float64(time.Minute))
			if o.Schedules == 0 && o.Limit == 0 {
				o.Limit = time.Minute
			}
			o.Every = 5 * time.Second
			o.Progress = func(r sim.Report) { fmt.Fprintln(cmd.ErrOrStderr(), r) }
			return simulate(cmd, o, cover, need)
		},
	}
	cmd.Flags().Float64Var(&minutes, "minutes", 0, "begin no schedule after so long; 1 when --schedules is not given either")
	cmd.Flags().Uint64Var(&o.Schedules, "schedules", 0, "play so many at most; 0: as many as there is time for")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "of the first schedule; the others count up from it")
	cmd.Flags().IntVar(&o.Keep, "keep-going", 0, "go on after so many failures")
	cmd.Flags().BoolVar(&trace, "trace", false, "play the schedule of --seed alone, and print what happens in it")
	cmd.Flags().BoolVar(&cover, "coverage", false, "print how often each fault and each pair of a state and an input was met")
	cmd.Flags().Uint64Var(&need, "need", 0, "fail when a fault or a pair that can happen was met less often")
	return cmd
}

// simulate plays, and prints what was found; so far, when a signal ends it.
func simulate(cmd *cobra.Command, o sim.Options, cover bool, need uint64) error {
	r := sim.Run(cmd.Context(), o)
	out := cmd.OutOrStdout()
	fmt.Fprintln(out, r)
	if cover {
		r.Coverage.Print(out)
	}
	for _, f := range r.Failures {
		fmt.Fprintf(out, "seed %d: %s\n  baton bench sim --seed %d --trace\n", f.Seed, f.What, f.Seed)
	}
	if n := len(r.Failures); n > 0 {
		return fmt.Errorf("%d of %d schedules broke a promise", n, r.Schedules)
	}
	if missed := r.Coverage.Missed(need); len(missed) > 0 && cmd.Context().Err() == nil {
		for _, m := range missed {
			fmt.Fprintln(out, m)
		}
		return fmt.Errorf("%d of %d faults and pairs were not met as they should", len(missed), sim.Points)
	}
	return cmd.Context().Err()
}
