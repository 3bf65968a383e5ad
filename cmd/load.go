package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/cmd/load"
	"github.com/batonkv/baton/examples/engine/tp"
	engine "github.com/batonkv/baton/examples/load"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/sums"
)

func newLoadCmd() *cobra.Command {
	o := load.Options{}
	var shards, model string
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Run many made-up requests at once through real processes and compare every byte",
		Long: `Run many made-up requests at once: hand-offs with one copy and several, aborted, too late,
asked for twice, before their export, preempted, given up, also while they are read; with
movers killed beside them if asked. Engines without a model stand in for real ones: the state of a request is a
pattern of its tokens. Exit code 1 when something is wrong, held by nobody, or ended
otherwise than it may.`,
		Example: `  baton load
  baton load --requests 20000 --at-once 500 --model attention --seed 7
  baton load --kill-movers 20 --prefill-memory gpu --decode-memory gpu-chunks
  baton load --export-parts --disagg-kv-transport-backend tcp`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			groups, err := dev.ParseShards(shards)
			o.Dev.Groups, o.Model = groups, engine.Model(model)
			if _, bad := sums.ParseMode(o.Dev.Verify); err == nil && bad != nil {
				err = fmt.Errorf("--verify %w", bad)
			}
			if err == nil {
				err = errors.Join(dev.CheckBackend(cmd.Context(), o.Dev.Backend), o.Check())
			}
			if err != nil {
				return &UsageError{Why: err.Error(), Hint: cmd.CommandPath() + " --help lists the flags and their form"}
			}
			if o.Seed == 0 {
				o.Seed = rand.Uint64N(1 << 32)
			}
			o.Dev.LogFormat, _ = cmd.Flags().GetString("log-format") // the root defines both
			o.Dev.LogLevel = "error"
			if cmd.Flags().Changed("log-level") {
				o.Dev.LogLevel, _ = cmd.Flags().GetString("log-level")
			}
			o.Dev.Stderr, o.Dev.Progress = cmd.ErrOrStderr(), progress(cmd.ErrOrStderr())
			ctx, cancel := lifeline.Context(cmd.Context())
			defer cancel()
			return load.Run(ctx, o, cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&shards, "inference-shards", "tp=2,role=prefill+tp=1,role=decode+tp=2,role=decode", "`groups` tp=N,role=prefill|decode[,dp=N], joined by +")
	fs.StringVar(&model, "model", "hybrid", "what state a request has: hybrid (KV, convolution windows, recurrent state) or attention")
	fs.StringVar(&o.Dev.Backend, "disagg-kv-transport-backend", "shm", "what moves the bytes: "+backendsHelp())
	fs.StringVar(&o.Dev.Verify, "verify", sums.Off.String(), verifyUsage)
	fs.IntVar(&o.Requests, "requests", 1000, "how many requests")
	fs.IntVar(&o.AtOnce, "at-once", 0, fmt.Sprintf("how many of them at once, 1 to %d; 0: all, but no more than %d", load.MaxAtOnce, load.DefaultAtOnce))
	fs.Uint64Var(&o.Seed, "seed", 0, "seed of the requests; 0 takes a random one and prints it")
	fs.IntVar(&o.KillMovers, "kill-movers", 0, "kill -9 so many movers while requests run")
	fs.IntVar(&o.KillSidecars, "kill-sidecars", 0, "kill -9 so many sidecars too; they are started again, and requests under way may fail")
	fs.Int32Var(&o.Blocks, "blocks", load.DefaultBlocks, "blocks of each prefill engine")
	fs.Int32Var(&o.Slots, "slots", load.DefaultSlots, "slots of each prefill engine")
	fs.BoolVar(&o.Parts, "export-parts", false, "let prompts leave in parts while they are computed, by chunks or by their layers")
	fs.BoolVar(&o.Damage, "damage", false, "flip one bit of everything that is admitted; the run must fail")
	memoryFlags(fs, &o)
	cmd.AddCommand(newLoadRankCmd())
	return cmd
}

// memories is where load engines may keep state.
var memories = fmt.Sprintf("%s, %s (allocations that a handle names) or %s (physical allocations with descriptors)", engine.OnHost, engine.OnGPU, engine.OnSegments)

func memoryFlags(fs *pflag.FlagSet, o *load.Options) {
	fs.StringVar((*string)(&o.Prefill), "prefill-memory", string(engine.OnHost), "`where` prefill engines keep state: "+memories)
	fs.StringVar((*string)(&o.Decode), "decode-memory", string(engine.OnHost), "`where` decode engines keep state: "+memories)
}

// loadRankFlags are the flags of `baton load rank`.
type loadRankFlags struct {
	engine.Config
	instance, runDir, rendezvous, driver, model string
}

func newLoadRankCmd() *cobra.Command {
	var f loadRankFlags
	cmd := &cobra.Command{
		Use:    "rank --group NAME --instance HEX --run-dir DIR",
		Short:  "Run one rank of the load engine",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := f.run(cmd.Context())
			if errors.Is(err, engine.ErrConfig) {
				return &UsageError{Why: err.Error(), Hint: "baton load rank --help lists the flags"}
			}
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.Group, "group", "", "name of the group, as its sidecars have it")
	fs.StringVar(&f.instance, "instance", "", "random `hex` number of this launch, equal on all ranks")
	fs.IntVar(&f.Rank, "rank", 0, "rank within the group")
	fs.IntVar(&f.TP, "tp", 1, "ranks of the group")
	fs.StringVar(&f.runDir, "run-dir", "", "run `directory` of this rank's sidecar")
	fs.StringVar(&f.rendezvous, "rendezvous", "", "`directory` where the ranks of the group meet")
	fs.StringVar(&f.driver, "driver", "", "unix `socket` on which rank 0 takes its driver")
	fs.StringVar(&f.model, "model", "hybrid", "hybrid or attention")
	fs.StringVar(&f.Order, "order", "planes", "how the cache nests: planes, layer-planes, layer-blocks or block-major")
	fs.Int32Var(&f.Blocks, "blocks", load.DefaultBlocks, "blocks of the paged cache")
	fs.Int32Var(&f.Slots, "slots", load.DefaultSlots, "slots of per-request state")
	fs.Int32Var(&f.BlockTokens, "block-tokens", 16, "tokens of a block")
	fs.StringVar((*string)(&f.Memory), "memory", string(engine.OnHost), "`where` it keeps state: "+memories)
	fs.StringVar(&f.Profiles, "profiles", "", "`directory` of profiles; that of the sidecar when it is not given")
	fs.BoolVar(&f.ExportParts, "export-parts", false, "let prompts leave in parts")
	fs.BoolVar(&f.Damage, "damage", false, "flip one bit of everything that is admitted")
	return cmd
}

// run ends when ctx does, or with the parent.
func (f *loadRankFlags) run(ctx context.Context) error {
	ctx, cancel := lifeline.Context(ctx)
	defer cancel()
	n, err := strconv.ParseUint(f.instance, 16, 64)
	if err != nil {
		return fmt.Errorf("%w: instance %q: want a hexadecimal number of at most 64 bits", engine.ErrConfig, f.instance)
	}
	f.Instance, f.Model = handoff.Instance(n), engine.Model(f.model)
	if (f.Rank == 0) != (f.driver != "") {
		return fmt.Errorf("%w: driver: rank 0 takes one, no other does", engine.ErrConfig)
	}
	f.Profiles = cmp.Or(f.Profiles, f.runDir)
	r, err := engine.New(f.Config)
	if err != nil {
		return err
	}
	defer r.Close()
	var l net.Listener
	if f.driver != "" {
		if l, err = tp.Listen(ctx, f.driver); err != nil {
			return fmt.Errorf("driver's socket: %w", err)
		}
		defer os.Remove(f.driver)
	}
	g, err := tp.Meet(ctx, tp.Join{Dir: f.rendezvous, Rank: f.Rank, Size: f.TP, Identity: f.Identity()})
	if err != nil {
		return err
	}
	defer g.Close()
	c, err := client.Dial(ctx, client.Config{Dir: f.runDir, Attach: r.Attach(), Files: r.Files()})
	if err != nil {
		return fmt.Errorf("attach rank %d of %s to its sidecar in %s: %w", f.Rank, f.Group, f.runDir, err)
	}
	defer c.Close()
	if err := lifeline.Ready(struct{}{}); err != nil {
		return err
	}
	served := make(chan error, 1)
	if l == nil {
		served <- nil
	} else {
		go func() { served <- r.Serve(ctx, l) }() // its end leaves the rank at work: the driver stops the process
	}
	err = r.Run(ctx, g, c)
	cancel()
	return errors.Join(err, <-served)
}
