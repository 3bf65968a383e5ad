package cmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/internal/bounded"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/worker"
	"github.com/batonkv/baton/sidecar/handoff"
)

// dynamoWorkerFlags are the flags of `baton dynamo-worker`.
type dynamoWorkerFlags struct {
	config, front, role, component, model, folder, group, system string
	block, maxNew, context                                       int32
	grace, drain                                                 time.Duration
}

func newDynamoWorkerCmd() *cobra.Command {
	var f dynamoWorkerFlags
	cmd := &cobra.Command{
		Use:   "dynamo-worker --role ROLE --front SOCKET --config FILE --model NAME",
		Short: "Serve an engine to NVIDIA Dynamo as a prefill or decode worker",
		Long: `A Dynamo worker for an engine that has none: endpoint generate of a prefill or a decode
component, on behalf of one engine that serves the Generate front on a unix socket, as
the reference engine does. Prefill answers with disaggregated_params that carry the
manifest; decode has its engine import that, and streams tokens.

Dynamo's HTTP frontend needs the model's tokenizer to serve it: --model-path is a folder with
config.json, tokenizer.json and what else of Hugging Face's files there is. With --system
frontends fetch the files there, else they look for the same folder.

FILE has the keys of the sidecar's adapter dynamo: namespace, etcd or folder, listen. Its
component is where hand-offs that nobody imports are released.

While the engine does not listen on its socket, does not answer or takes no request, as while
baton drain has its group drain, Dynamo's clients do not find the worker.

A signal ends it in Dynamo's order: its records go, calls of clients that have not heard of
it are served for --grace, what runs ends by itself within --drain-timeout. A second one
ends what runs at once.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.role, "role", "", "prefill or decode")
	fs.StringVar(&f.front, "front", "", "unix `socket` on which the engine's rank 0 takes requests")
	fs.StringVar(&f.config, "config", "", "`file` with the keys of adapter dynamo")
	fs.StringVar(&f.component, "component", "", "of the endpoint (default: prefill, or backend for a decode worker)")
	fs.StringVar(&f.model, "model", "", "`name` that requests give the model")
	fs.StringVar(&f.folder, "model-path", "", "`folder` of the model's tokenizer and configuration, for Dynamo's frontend")
	fs.StringVar(&f.group, "group", "", "`name` of the engine's group of sidecars, for the worker's card; KV events want it")
	fs.StringVar(&f.system, "system", "", "`ip:port` of /health, /live, /metrics and the model's files (default: port DYN_SYSTEM_PORT of every address, where that is set)")
	fs.Int32Var(&f.context, "context-tokens", 0, "most tokens of prompt and answer, for the card (default: what config.json says)")
	fs.Int32Var(&f.block, "block-tokens", 16, "tokens of a block of the engine's cache")
	fs.Int32Var(&f.maxNew, "max-new", 256, "most tokens of a request that gives no limit")
	fs.DurationVar(&f.grace, "grace", 5*time.Second, "how long calls are taken after the records are gone")
	fs.DurationVar(&f.drain, "drain-timeout", time.Minute, "how long what runs may go on after that")
	return cmd
}

// settings checks the flags and reads the files: nothing is dialled before that.
func (f *dynamoWorkerFlags) settings() (worker.Config, error) {
	c := worker.Config{Component: f.component, Role: discovery.Role(f.role), Model: f.model, Group: f.group, Context: f.context, Block: f.block,
		MaxNew: f.maxNew, System: f.system, Grace: f.grace, Log: slog.Default()}
	wrong := func(why string) (worker.Config, error) {
		return c, &UsageError{Why: "dynamo-worker: " + why, Hint: "baton dynamo-worker --help lists the flags"}
	}
	switch {
	case c.Role != discovery.Prefill && c.Role != discovery.Decode:
		return wrong(fmt.Sprintf("--role %q: want prefill or decode", f.role))
	case f.front == "" || f.config == "" || f.model == "":
		return wrong("--front, --config and --model: want all three")
	case f.block < 1 || f.maxNew < 1 || f.grace < 0 || f.drain < 0 || f.context < 0:
		return wrong("--block-tokens and --max-new want at least 1, --grace, --drain-timeout and --context-tokens at least 0")
	}
	if c.Component == "" {
		if c.Component = "backend"; c.Role == discovery.Prefill {
			c.Component = "prefill"
		}
	}
	if err := directory.CheckName("component", c.Component); err != nil {
		return wrong(fmt.Sprintf("--component: %v", err))
	}
	if port := os.Getenv("DYN_SYSTEM_PORT"); c.System == "" && port != "" && port != "-1" {
		c.System = ":" + port
	}
	if _, err := net.ResolveTCPAddr("tcp", c.System); err != nil {
		return wrong(fmt.Sprintf("--system %q: %v: want ip:port, such as 0.0.0.0:9090", c.System, err))
	}
	if err := f.read(&c); err != nil {
		return c, &UsageError{Why: "dynamo-worker: " + err.Error(), Hint: "baton dynamo-worker --help lists the flags; docs/DYNAMO.md shows the keys of FILE"}
	}
	return c, nil
}

// read takes the adapter's keys and the model's files.
func (f *dynamoWorkerFlags) read(c *worker.Config) error {
	b, err := bounded.File(f.config, adapter.MaxSection)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if c.Dynamo, err = dynamo.ParseConfig(b); err != nil {
		return fmt.Errorf("--config %s: %w", f.config, err)
	}
	if c.Dynamo.KV.Wanted() && c.Group == "" {
		return fmt.Errorf("--group: want it with kv.events: routers hear of the worker's cache by its group of sidecars")
	}
	if f.folder == "" {
		return nil
	}
	if c.Assets, err = worker.ReadAssets(f.folder); err != nil {
		return fmt.Errorf("--model-path: %w", err)
	}
	return nil
}

func (f *dynamoWorkerFlags) run(ctx context.Context) error {
	c, err := f.settings()
	if err != nil {
		return err
	}
	ctx, cancel := lifeline.Context(ctx)
	defer cancel()
	w, err := worker.Start(c, fronted{front.New(f.front)})
	if err != nil {
		return err
	}
	w.Attend(ctx, looker(blocked(front.New(f.front).Tell, f.block), f.role))
	slog.Info("ends: no new calls are taken after the grace period", "grace", f.grace)
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), f.grace+f.drain)
	defer stop()
	go hurry(last, stop)
	w.Close(last)
	return nil
}

// hurry has a second signal end the waits of last, so that hand-offs are still released; a
// third ends the process where it stands.
func hurry(last context.Context, stop func()) {
	again, from := make(chan os.Signal, 1), time.Now()
	signal.Notify(again, os.Interrupt, unix.SIGTERM)
	defer signal.Stop(again)
	for {
		select {
		case <-again:
			if time.Since(from) < repeat {
				continue
			}
			slog.Info("a second signal: ends what runs")
			stop()
			return
		case <-last.Done():
			return
		}
	}
}

// blocked is ask, and warns when the engine's blocks are not those that the card tells: routers
// find no prefix then. It says so once for each length.
func blocked(ask func(context.Context) (front.Told, error), want int32) func(context.Context) (front.Told, error) {
	last := want
	return func(ctx context.Context) (front.Told, error) {
		t, err := ask(ctx)
		if err == nil && t.Block != 0 && t.Block != last {
			if last = t.Block; last != want {
				slog.Warn("the engine has blocks of another length than --block-tokens: routers find no prefix in its cache, and reckon its room wrong", "engine", t.Block, "flag", want)
			}
		}
		return t, err
	}
}

// looker says why an engine that tells of itself cannot serve a worker of role want, nil if it
// can. One that does not tell, or not at this moment, has the role that it told last.
func looker(ask func(context.Context) (front.Told, error), want string) worker.Look {
	last := ""
	return func(ctx context.Context) (int32, error) {
		t, err := ask(ctx)
		if err != nil && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if err = refused(err); errors.Is(err, handoff.ErrNotReady) {
			return 0, err
		}
		if err == nil {
			last = t.Role
		}
		if last != "" && last != want && last != string(discovery.Both) {
			return 0, fmt.Errorf("%w: the engine at --front has role %s, this worker has --role %s: give it the other engine's socket, or another role", handoff.ErrRole, last, want)
		}
		if errors.Is(t.Closed, handoff.ErrPeer) {
			return 0, t.Closed
		}
		if t.Closed != nil {
			return 0, fmt.Errorf("%w: %w", handoff.ErrDraining, t.Closed)
		}
		return t.Room, nil
	}
}

// fronted is an engine behind the Generate front.
type fronted struct{ c *front.Client }

// Prefill implements worker.Engine.
func (e fronted) Prefill(ctx context.Context, j worker.Job) (m handoff.Manifest, first int32, err error) {
	r, err := e.c.Generate(ctx, front.Request{Tokens: j.Tokens, MaxNew: j.MaxNew, Label: j.Label, Mode: front.Export, Sample: sampling(j)}, nil)
	if err != nil {
		return m, 0, refused(err)
	}
	if r.Manifest == nil || len(r.Manifest.Resume.Tokens) == 0 {
		return m, 0, fmt.Errorf("%w: it exports without a manifest or a token", handoff.ErrEngine)
	}
	return *r.Manifest, r.Manifest.Resume.Tokens[0], nil
}

// Decode implements worker.Engine.
func (e fronted) Decode(ctx context.Context, j worker.Job, m *handoff.Manifest, each func(int32, *float32) error) (string, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	q := front.Request{Tokens: j.Tokens, MaxNew: j.MaxNew, Mode: front.Full, Sample: sampling(j)}
	if m != nil {
		q = front.Request{Tokens: j.Tokens, MaxNew: j.MaxNew, Label: j.Label, Mode: front.Import, Manifest: m}
	}
	r, err := e.c.Stream(ctx, q, func(ev front.Event) {
		if err := each(ev.Token, ev.Logprob); err != nil {
			end(err)
		}
	})
	return r.Reason, refused(err)
}

// refused keeps what a caller decides by.
func refused(err error) error {
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return fmt.Errorf("%w: %w", handoff.ErrNotReady, err)
	}
	if errors.Is(err, front.ErrRequest) {
		return &atFault{err}
	}
	return err
}

// atFault is an engine's refusal, in its words, of a request that nothing helps but another one.
type atFault struct{ error }

func (e *atFault) Unwrap() []error { return []error{handoff.ErrBound, e.error} }

// sampling is what Dynamo asks in the engine's words; what is not given is greedy.
func sampling(j worker.Job) sample.Params {
	s := j.Sampling
	p := sample.Params{Logprobs: j.Logprobs, MinTokens: j.MinNew, IgnoreEOS: j.IgnoreEOS}
	for _, id := range j.Stops {
		p.Stop = append(p.Stop, []int32{id})
	}
	if s.Temperature != nil {
		p.Temperature = float32(*s.Temperature)
	}
	if s.TopK != nil {
		p.TopK = max(*s.TopK, 0) // -1 is all, as 0 here
	}
	if s.TopP != nil {
		p.TopP = float32(*s.TopP)
	}
	if s.Seed != nil {
		p.Seed = uint64(*s.Seed)
	}
	return p
}
