package cmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/admission"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/tp"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// engineFlags are the flags of `baton engine`.
type engineFlags struct {
	group, instance, runDir, rendezvous, front, model, modelDir, corrupt string
	kv, conv, ssm                                                        string
	rank                                                                 int
	split                                                                model.Split
	blocks, slots, blockTokens                                           int32
	seed                                                                 uint64
	poison, prefixCache, exportParts                                     bool
	role, shapes, stepLog                                                string
	stepTokens, chunk                                                    int32
}

func newEngineCmd() *cobra.Command {
	var f engineFlags
	cmd := &cobra.Command{
		Use:   "engine --group NAME --instance HEX --run-dir DIR",
		Short: "Run one rank of the reference engine",
		Long: `Run one rank of the reference engine beside its sidecar. Ranks of a group meet in
--rendezvous; rank 0 takes requests on --front. Without --run-dir it runs without a
sidecar and serves whole requests only.`,
		Hidden: true,
		Args:   noArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return engineError(f.run(cmd.Context())) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.group, "group", "", "name of the group, as its sidecars have it")
	fs.StringVar(&f.instance, "instance", "", "random `hex` number of this launch, equal on all ranks")
	fs.IntVar(&f.rank, "rank", 0, "rank within the group")
	fs.IntVar(&f.split.TP, "tp", 1, "ranks that cut every layer")
	fs.IntVar(&f.split.PP, "pp", 1, "stages of layers")
	fs.IntSliceVar(&f.split.Layers, "layers", nil, "layers of each stage (default: evenly)")
	fs.IntVar(&f.split.EP, "ep", 1, "ranks over which experts are spread; the group has tp·pp·ep·expt-tp")
	fs.IntVar(&f.split.ExptTP, "expt-tp", 1, "ranks that cut every expert")
	fs.StringVar(&f.runDir, "run-dir", "", "run `directory` of this rank's sidecar")
	fs.StringVar(&f.rendezvous, "rendezvous", "", "`directory` where the ranks of the group meet")
	fs.StringVar(&f.front, "front", "", "unix `socket` on which rank 0 takes requests")
	fs.StringVar(&f.model, "model", "hybrid", model.Names())
	fs.StringVar(&f.modelDir, "model-dir", "", modelDirUsage)
	fs.Uint64Var(&f.seed, "seed", 1, "seed of the weights")
	fs.Int32Var(&f.blocks, "blocks", 256, "blocks of the paged cache")
	fs.Int32Var(&f.slots, "slots", 16, "slots of per-request state")
	fs.Int32Var(&f.blockTokens, "block-tokens", 16, "tokens of a block")
	fs.BoolVar(&f.poison, "poison", true, "fill memory with NaN when it is handed out")
	fs.StringVar(&f.kv, "kv", "bf16", "element `type` of the paged cache: bf16, fp16 or fp32")
	fs.StringVar(&f.conv, "conv", "fp32", "element `type` of convolution windows: fp32 or bf16")
	fs.StringVar(&f.ssm, "ssm", "fp32", "element `type` of recurrent state: fp32 or bf16")
	fs.StringVar(&f.role, "role", "both", "which side of a hand-off it takes: prefill, decode or both")
	fs.BoolVar(&f.prefixCache, "prefix-cache", true, "find prompts in the cache; a hand-off needs it")
	fs.Int32Var(&f.stepTokens, "step-tokens", 0, "most tokens of a step (default 512)")
	fs.Int32Var(&f.chunk, "chunk", 0, "most tokens of one prompt in a step (default 256)")
	fs.BoolVar(&f.exportParts, "export-parts", false, "let chunks of a prompt leave as they are computed")
	fs.StringVar(&f.shapes, "shapes", "", "captured `shapes` TOKENS/PREFILLS/DECODES, joined by commas: a prompt waits for one (default: none, nobody waits)")
	fs.StringVar(&f.stepLog, "step-log", "", "`file` of what each step ran and by which shape, in JSON lines (default: the log, at level debug)")
	fs.StringVar(&f.corrupt, "corrupt", "", "damage every import, or every export in role prefill: kv, state, head-swap, one-block or position")
	return cmd
}

// modelDirUsage is of --model-dir.
const modelDirUsage = "`directory` of a Llama or Bamba as transformers saves it (config.json, model*.safetensors), instead of --model"

// engineError tells mistakes in the call from what went wrong later.
func engineError(err error) error {
	if errors.Is(err, engine.ErrConfig) || errors.Is(err, model.ErrConfig) {
		return &UsageError{Why: err.Error(), Hint: "baton engine --help lists the flags"}
	}
	return err
}

func (f *engineFlags) config() (engine.Config, error) {
	m, err := model.Open(f.modelDir, f.model, f.seed)
	if err != nil {
		return engine.Config{}, err
	}
	n, err := strconv.ParseUint(f.instance, 16, 64)
	if err != nil {
		return engine.Config{}, fmt.Errorf("%w: instance %q: want a hexadecimal number of at most 64 bits", engine.ErrConfig, f.instance)
	}
	if f.rank > 0 && f.front != "" {
		return engine.Config{}, fmt.Errorf("%w: front: rank %d takes no requests, only rank 0 does", engine.ErrConfig, f.rank)
	}
	types, err := f.types()
	if err != nil {
		return engine.Config{}, err
	}
	shapes, err := admission.ParseShapes(f.shapes)
	if err != nil {
		return engine.Config{}, fmt.Errorf("%w: --shapes: %w", engine.ErrConfig, err)
	}
	return engine.Config{Model: m, Group: f.group, Instance: handoff.Instance(n), Rank: f.rank,
		TP: f.split.TP, PP: f.split.PP, EP: f.split.EP, ExptTP: f.split.ExptTP, Layers: f.split.Layers,
		Blocks: f.blocks, Slots: f.slots, BlockTokens: f.blockTokens, Types: types, Poison: f.poison,
		Corrupt: engine.Corrupt(f.corrupt), Profiles: f.runDir,
		Role: engine.Role(f.role), NoPrefixCache: !f.prefixCache, StepTokens: f.stepTokens, Chunk: f.chunk, ExportParts: f.exportParts, Shapes: shapes, Log: slog.Default()}, nil
}

func (f *engineFlags) types() (t model.Types, err error) {
	for _, k := range []struct {
		flag, value string
		to          *layout.DType
	}{{"kv", f.kv, &t.KV}, {"conv", f.conv, &t.Conv}, {"ssm", f.ssm, &t.SSM}} {
		if *k.to, err = layout.ParseDType(k.value); err != nil {
			return t, fmt.Errorf("%w: --%s: %w", engine.ErrConfig, k.flag, err)
		}
	}
	return t, nil
}

// run ends when ctx does, or with the parent.
func (f *engineFlags) run(ctx context.Context) error {
	ctx, cancel := lifeline.Context(ctx)
	defer cancel()
	cfg, err := f.config()
	if err != nil {
		return err
	}
	if f.stepLog != "" {
		out, err := os.OpenFile(f.stepLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("--step-log: %w", err)
		}
		defer out.Close()
		cfg.Log = slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	r, err := engine.New(cfg)
	if err != nil {
		return err
	}
	defer r.Close()
	g, err := tp.Meet(ctx, tp.Join{Dir: f.rendezvous, Rank: cfg.Rank, Size: cfg.Ranks(), Identity: cfg.Identity()})
	if err != nil {
		return err
	}
	defer g.Close()
	c, err := f.attach(ctx, r)
	if err != nil {
		return err
	}
	if c != nil {
		defer c.Close()
	}
	return f.serve(ctx, cancel, r, g, c)
}

// attach connects a rank to its sidecar; without one the client is nil.
func (f *engineFlags) attach(ctx context.Context, r *engine.Rank) (*client.Client, error) {
	if f.runDir == "" {
		return nil, nil
	}
	c, err := client.Dial(ctx, client.Config{Dir: f.runDir, Attach: r.Attach(), Files: r.Files()})
	if err != nil {
		return nil, fmt.Errorf("attach rank %d of %s to its sidecar in %s: %w", f.rank, f.group, f.runDir, err)
	}
	return c, nil
}

// attachPause is between two tries to attach after a switch, whose sidecar may be on its
// way to the new role itself.
const attachPause = 100 * time.Millisecond

// rounds runs a rank, and again after each switch of its role, with another session.
func (f *engineFlags) rounds(ctx context.Context, r *engine.Rank, g *tp.Group, c *client.Client) error {
	for {
		var s engine.Session
		if c != nil {
			s = c
		}
		err := r.Run(ctx, g, s)
		if c != nil {
			c.Close()
		}
		if !errors.Is(err, engine.ErrSwitched) {
			return err
		}
		// With ctx ended, Run tells those that wait.
		for c, err = f.attach(ctx, r); err != nil && ctx.Err() == nil; c, err = f.attach(ctx, r) {
			slog.Warn("the rank waits for the sidecar of its new role", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(attachPause):
			}
		}
	}
}

// serve runs the rank and, on rank 0, the front beside it.
func (f *engineFlags) serve(ctx context.Context, cancel context.CancelFunc, r *engine.Rank, g *tp.Group, c *client.Client) error {
	var l net.Listener
	if f.front != "" {
		var err error
		if l, err = tp.Listen(ctx, f.front); err != nil {
			return fmt.Errorf("front: %w", err)
		}
		defer os.Remove(f.front)
	}
	kv, state := r.Bytes()
	if err := lifeline.Ready(dev.EngineReady{PID: os.Getpid(), Front: f.front, KVBytes: kv, State: state}); err != nil {
		return err
	}
	fronted := make(chan error, 1)
	if l == nil {
		fronted <- nil
	} else {
		go func() {
			err := front.Serve(ctx, l, r)
			cancel() // the rank does not go on without its front
			fronted <- err
		}()
	}
	err := f.rounds(ctx, r, g, c)
	cancel()
	return errors.Join(err, <-fronted)
}
