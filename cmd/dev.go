package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer/sums"
)

// devFlags are the flags that dev and demo share.
type devFlags struct {
	shards, backend, model, modelDir, verify string
	seed                                     uint64
	blockTokens                              int32
	noEngines                                bool
}

func (f *devFlags) bind(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.shards, "inference-shards", "tp=2,role=prefill+tp=1,role=decode", "`groups` tp=N,role=prefill|decode[,pp=N][,layers=A:B][,ep=N][,expt_tp=N][,dp=N][,kv=TYPE][,state=TYPE], joined by +")
	fs.StringVar(&f.backend, "disagg-kv-transport-backend", "shm", "what moves the bytes: "+backendsHelp())
	fs.StringVar(&f.verify, "verify", sums.Off.String(), verifyUsage)
	fs.StringVar(&f.model, "model", "hybrid", "the reference engine's `model`: "+model.Names())
	fs.StringVar(&f.modelDir, "model-dir", "", modelDirUsage)
	fs.Uint64Var(&f.seed, "seed", 1, "seed of the model's weights")
	fs.Int32Var(&f.blockTokens, "block", 16, "tokens of a block of the paged cache, 1 to 1024")
}

const verifyUsage = "sum up what is exported and compare what arrives before it is used: off, sample or all"

// backendsHelp lists what may move bytes here.
func backendsHelp() string {
	return dev.Backends[0] + "; or as between hosts " + strings.Join(dev.Backends[1:], ", ") + " (tcp-plain: without TLS; auto: the best that is here)"
}

// maxBlockTokens bounds --block: caches grow with it.
const maxBlockTokens = 1024

// engines are the words of --engine.
const (
	referenceEngine = "reference"
	noEngine        = "none"
)

// options checks the whole call before anything is started.
func (f *devFlags) options(cmd *cobra.Command, corrupt string) (dev.Options, error) {
	groups, err := dev.ParseShards(f.shards)
	if err == nil {
		err = f.check(cmd.Context(), groups, corrupt)
	}
	if err != nil {
		return dev.Options{}, &UsageError{Why: err.Error(), Hint: cmd.CommandPath() + " --help lists the flags and their form"}
	}
	format, _ := cmd.Flags().GetString("log-format") // the root defines both
	level := "warn"
	if cmd.Flags().Changed("log-level") {
		level, _ = cmd.Flags().GetString("log-level")
	}
	return dev.Options{Groups: groups, Corrupt: corrupt, Model: f.model, ModelDir: f.modelDir, Seed: f.seed, BlockTokens: f.blockTokens, Backend: f.backend, Verify: f.verify,
		NoEngines: f.noEngines, Restart: true, LogLevel: level, LogFormat: format, Stderr: cmd.ErrOrStderr(), Progress: progress(cmd.ErrOrStderr())}, nil
}

// check asks the engine about each group.
func (f *devFlags) check(ctx context.Context, groups []dev.Group, corrupt string) error {
	if f.seed == 0 {
		return errors.New("seed 0: want 1 or more")
	}
	if err := dev.CheckBackend(ctx, f.backend); err != nil {
		return err
	}
	if _, err := sums.ParseMode(f.verify); err != nil {
		return fmt.Errorf("--verify %w", err)
	}
	if f.blockTokens < 1 || f.blockTokens > maxBlockTokens {
		return fmt.Errorf("--block %d: want 1 to %d tokens", f.blockTokens, maxBlockTokens)
	}
	if f.noEngines {
		return nil
	}
	m, err := model.Open(f.modelDir, f.model, f.seed)
	if err != nil {
		return err
	}
	for _, g := range groups {
		c := engine.Config{Model: m, Group: g.Name, Instance: 1, TP: int(g.TP), PP: int(g.PP), EP: int(g.EP), ExptTP: int(g.ExptTP), Layers: g.Layers, Blocks: dev.DefaultBlocks, Slots: dev.DefaultSlots, BlockTokens: f.blockTokens,
			Types: model.Types{KV: g.KV, Conv: g.Conv, SSM: g.SSM}}
		c.Corrupt = engine.Corrupt(dev.Options{Corrupt: corrupt, Verify: f.verify}.Damage(g.Role))
		if err := c.Check(); err != nil {
			return fmt.Errorf("group %s: %w", g.Name, err)
		}
	}
	return nil
}

// progress says what is being waited for, with the time since the start.
func progress(w io.Writer) func(string) {
	began := time.Now()
	return func(what string) { fmt.Fprintf(w, "%5.1f s  %s\n", time.Since(began).Seconds(), what) }
}

func newDevCmd() *cobra.Command {
	var f devFlags
	var engines, output string
	var adapters []string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Bring a whole Baton up on this machine, until Ctrl-C",
		Long: `Bring a whole Baton up on this machine: etcd and NATS in this process, and for each
rank a sidecar, its mover and a rank of the reference engine as processes of their own.
It stays up until Ctrl-C, and no process outlives it. A sidecar or mover that dies is
started again; when an engine dies all of it ends, and says which.

With --engine none it starts no engines and says where each rank's sidecar takes yours:
the run directory that baton.attach of the Python client, or Dial of the Go client, wants.

With --adapter each group has that built-in adapter; FILE has what is under the adapter's
config in the configuration of a sidecar.`,
		Example: `  baton dev --inference-shards "tp=2,role=prefill+tp=1,dp=2,role=decode"
  baton dev --engine none -o json   # one line when it is up, for programs
  baton dev --adapter dynamo=dynamo.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, k := range []struct {
				flag, value string
				want        []string
			}{{"engine", engines, []string{referenceEngine, noEngine}}, {"output", output, []string{"text", "json"}}} {
				if !slices.Contains(k.want, k.value) {
					return &UsageError{Why: fmt.Sprintf("--%s %q: want %s", k.flag, k.value, strings.Join(k.want, " or ")), Hint: cmd.CommandPath() + " --help lists the flags and their form"}
				}
			}
			f.noEngines = engines == noEngine
			o, err := f.options(cmd, "")
			if err != nil {
				return err
			}
			if o.Adapters, err = devAdapters(cmd.Context(), adapters); err != nil {
				return &UsageError{Why: "--adapter " + err.Error(), Hint: "--adapter dynamo=dynamo.yaml; docs/DYNAMO.md and docs/PLUGINS.md show the keys of FILE"}
			}
			return runDev(cmd, o, output == "json")
		},
	}
	f.bind(cmd)
	cmd.Flags().StringVar(&engines, "engine", referenceEngine, "reference, or none: you attach engines of your own")
	cmd.Flags().StringArrayVar(&adapters, "adapter", nil, "built-in adapter `NAME=FILE` of each group, and its keys; several by several flags")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, or json: one line when it is up")
	return cmd
}

func runDev(cmd *cobra.Command, o dev.Options, json bool) (err error) {
	ctx, cancel := lifeline.Context(cmd.Context())
	defer cancel()
	c, err := dev.Up(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if json {
		if err := c.PrintJSON(cmd.OutOrStdout()); err != nil {
			return err
		}
	} else {
		sayUp(cmd.OutOrStdout(), c)
	}
	select {
	case err := <-c.Died():
		return err
	case <-ctx.Done():
		fmt.Fprintln(cmd.ErrOrStderr(), "stopping engines, sidecars and servers")
		return nil
	}
}

// sayUp tells people what is up, and what they can do with it.
func sayUp(out io.Writer, c *dev.Cluster) {
	c.Print(out)
	fmt.Fprintf(out, `
up; Ctrl-C stops everything. In another terminal:
  %-22s what happens, live
  %-22s measure the links between ranks, and what to do about a bad one
  %-22s let a group finish what it has
They find this cluster; where several are up, or as another user, add
  --config %s
`, "baton watch", "baton doctor", "baton drain "+c.Groups[len(c.Groups)-1].Name, c.Control())
}
