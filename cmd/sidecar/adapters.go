package sidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/examples/adapter/webhook"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/child"
	"github.com/batonkv/baton/plugins/adapter/drive"
	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/session"
	"github.com/batonkv/baton/plugins/route"
	"github.com/batonkv/baton/sidecar/metrics"
)

// BuiltIn are the adapters that need no process of their own.
var BuiltIn = map[string]func(*slog.Logger) adapter.Adapter{
	"dynamo":  func(log *slog.Logger) adapter.Adapter { return &dynamo.Adapter{Log: log, Reshard: route.Layouts()} },
	"webhook": func(*slog.Logger) adapter.Adapter { return &webhook.Adapter{} },
}

// checkAdapters says which adapters are not built in, which of those that are refuse their
// part of the configuration, and which programs are not there. Parts and programs are those of
// rank 0 alone, which starts them. What a program wants in its part, it says when it runs.
func checkAdapters(ctx context.Context, c *config.Sidecar) error {
	var errs []error
	for _, a := range c.Adapters {
		if a.BuiltIn != "" && BuiltIn[a.BuiltIn] == nil {
			errs = append(errs, fmt.Errorf("%w: adapters.%s.built-in: %q: want one of %s, or a command", config.ErrConfig,
				a.Name, a.BuiltIn, strings.Join(slices.Sorted(maps.Keys(BuiltIn)), ", ")))
		}
		if open := BuiltIn[a.BuiltIn]; c.Rank == 0 && open != nil {
			if err := open(slog.New(slog.DiscardHandler)).Configure(ctx, []byte(a.Section)); err != nil {
				errs = append(errs, fmt.Errorf("%w: adapters.%s.config: %w", config.ErrConfig, a.Name, err))
			}
		}
		if c.Rank == 0 && len(a.Command) > 0 && a.Command[0] != "" {
			if _, err := exec.LookPath(a.Command[0]); err != nil {
				errs = append(errs, fmt.Errorf("%w: adapters.%s.command: %w: want a program of this host", config.ErrConfig, a.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// adapterGrace bounds the wait for adapters when the sidecar stops: a Drain, and the
// polite end of a process. A process that is left ends with the sidecar.
const adapterGrace = 6 * time.Second

// speak starts the adapters of the group, which rank 0 alone has, and stops them when ctx
// ends: while the sidecar still answers.
func (p *parts) speak(ctx context.Context) {
	if p.cfg.Rank != 0 || len(p.cfg.Adapters) == 0 {
		return
	}
	c := p.cfg
	source := drive.Of(adapter.Group{Cluster: c.Cluster, Pool: c.Pool, Name: c.Group, Tenant: c.Tenant, Role: c.Role}, p.side.Service())
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, a := range c.Adapters {
		log := p.log.With("adapter", a.Name)
		open := child.Open(a.Command, socketsIn(c.RunDir), log)
		if a.BuiltIn != "" {
			open = drive.BuiltIn(func() adapter.Adapter { return BuiltIn[a.BuiltIn](log) })
		}
		cfg := session.Default()
		cfg.Section, cfg.Mint = []byte(a.Section), rand.Uint64
		s := drive.Start(drive.Config{Session: cfg, Open: open, Source: source, Blocks: p.side.Service(), Log: log})
		p.metrics.Adapter(a.Name, stages(), func() metrics.Adapter {
			st := s.Status()
			return metrics.Adapter{Stage: st.Stage.String(), Restarts: st.Restarts, Coalesced: st.Coalesced, Lost: st.Lost, Err: st.Err}
		}, s.Counts)
		running.Go(func() {
			<-ctx.Done()
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), adapterGrace)
			defer cancel()
			if err := s.Stop(last); err != nil {
				log.Warn("adapter is left behind", "err", err)
			}
		})
	}
	p.onClose(func() error { stop(); running.Wait(); return nil })
}

// maxSocketsIn leaves room in a socket's path, which has 107 bytes, for a folder and a name.
const maxSocketsIn = 60

// socketsIn is where the sockets of programs are: in the run directory, which the next sidecar
// tidies, or among temporary files when its path is too long for that.
func socketsIn(runDir string) string {
	if len(runDir) > maxSocketsIn {
		return ""
	}
	return runDir
}

func stages() (names []string) {
	for _, s := range session.Stages() {
		names = append(names, s.String())
	}
	return names
}
