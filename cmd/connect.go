package cmd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/etcd"
	"github.com/batonkv/baton/plugins/route"
	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/sidecar/handoff"
)

// configEnv names a configuration file where --config does not.
const configEnv = "BATON_CONFIG"

// connection is how a command reaches sidecars: the flags that all such commands share.
type connection struct {
	file string
	cfg  config.Control
	keys []string // of flags that say where a cluster is
}

func (c *connection) bind(cmd *cobra.Command) {
	c.cfg = config.DefaultControl()
	fs := cmd.Flags()
	fs.StringVar(&c.file, "config", "", "YAML `file` with the keys of these flags (default: "+configEnv+", then the baton dev that runs here)")
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.Bind(own, &c.cfg)
	own.VisitAll(func(f *pflag.Flag) { c.keys = append(c.keys, f.Name) })
	fs.AddFlagSet(own)
	if f := fs.Lookup("etcd.ttl"); f != nil {
		f.Hidden = true // of registrations, which a control plane has none of
	}
}

// load fills the configuration: from the file and the flags, or else from the one
// cluster that baton dev has up.
func (c *connection) load(cmd *cobra.Command) error {
	path := c.file
	if path == "" {
		path = os.Getenv(configEnv)
	}
	given := false
	for _, k := range c.keys {
		given = given || cmd.Flags().Changed(k)
	}
	if path == "" && !given {
		found, err := theOne(cmd)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "cluster of baton dev, pid %d, %s\n", found.PID, found.Dir)
		path = found.Control()
	}
	if err := config.Load(path, cmd.Flags(), &c.cfg); err != nil {
		return &UsageError{Why: err.Error(), Hint: cmd.CommandPath() + " --help lists the keys; baton dev writes a control.yaml that shows them"}
	}
	return nil
}

// theOne is the only cluster of baton dev that is up.
func theOne(cmd *cobra.Command) (dev.Found, error) {
	found, err := dev.Find()
	switch {
	case err != nil:
		return dev.Found{}, err
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return dev.Found{}, &UsageError{Why: "no cluster is named, and no baton dev is up here",
			Hint: "start baton dev in another terminal, or name a cluster: --config FILE, or --cluster, --etcd.endpoints and --tls.*"}
	}
	var files []string
	for _, f := range found {
		files = append(files, "--config "+f.Control())
	}
	return dev.Found{}, &UsageError{Why: fmt.Sprintf("no cluster is named, and %d of baton dev are up here", len(found)), Hint: "choose " + strings.Join(files, ", or ")}
}

// open connects. What it returns to close goes after the router.
func (c *connection) open(cmd *cobra.Command) (*route.Router, io.Closer, error) {
	if err := c.load(cmd); err != nil {
		return nil, nil, err
	}
	dial, err := c.dial()
	if err != nil {
		return nil, nil, err
	}
	cfg := route.Config{TLS: dial}
	closer := io.Closer(nothing{})
	if c.cfg.Addr != "" {
		cfg.Source = c.addressed(dial)
	} else {
		registry, err := etcd.Open(cmd.Context(), c.cfg.Etcd)
		if err != nil {
			return nil, nil, c.explain(err)
		}
		closer, cfg.Source = registry, route.Discovery(registry, c.cfg.Cluster)
	}
	cfg.Source = telling(cfg.Source, func(what string) { fmt.Fprintln(cmd.ErrOrStderr(), what) })
	return route.New(cfg), closer, nil
}

// later connects when it is first needed: an etcd that is down delays nothing but calls.
func (c *connection) later(log *slog.Logger) (*route.Router, error) {
	dial, err := c.dial()
	if err != nil {
		return nil, err
	}
	cfg := route.Config{TLS: dial, Log: log}
	if c.cfg.Addr != "" {
		cfg.Source = c.addressed(dial)
		return route.New(cfg), nil
	}
	c.cfg.Etcd.Log = log
	cfg.Source = func(ctx context.Context) iter.Seq2[discovery.Snapshot, error] {
		return func(yield func(discovery.Snapshot, error) bool) {
			registry, err := etcd.Open(ctx, c.cfg.Etcd)
			if err != nil {
				yield(discovery.Snapshot{}, err)
				return
			}
			defer registry.Close()
			route.Discovery(registry, c.cfg.Cluster)(ctx)(yield)
		}
	}
	return route.New(cfg), nil
}

// dial is how the sidecar of a record is called.
func (c *connection) dial() (func(discovery.Record) *tls.Config, error) {
	own, err := c.cfg.TLS.Load(time.Now())
	if err != nil {
		return nil, &HintError{err, "baton certs show FILE says what is in it; baton certs leaf --control NAME makes one for a control plane"}
	}
	return func(r discovery.Record) *tls.Config {
		return own.Client(certs.Expect(certs.SidecarID(r.Cluster, r.Tenant, r.Group, r.Rank)))
	}, nil
}

// addressed is the group at --addr.
func (c *connection) addressed(dial func(discovery.Record) *tls.Config) route.Source {
	base := discovery.Record{Cluster: c.cfg.Cluster, Tenant: c.cfg.Tenant, Group: c.cfg.Group}
	return route.One(c.cfg.Addr, dial(base), base)
}

// telling is source, and says when it is lost and when it is back.
func telling(source route.Source, say func(string)) route.Source {
	lost := false // a router has one watch at a time
	return func(ctx context.Context) iter.Seq2[discovery.Snapshot, error] {
		return func(yield func(discovery.Snapshot, error) bool) {
			for s, err := range source(ctx) {
				switch {
				case err != nil && !lost && ctx.Err() == nil:
					lost = true
					say(fmt.Sprintf("who is there is not known any more, trying again: %v", err))
				case err == nil && lost:
					lost = false
					say("who is there is known again")
				}
				if !yield(s, err) {
					return
				}
			}
		}
	}
}

type nothing struct{}

func (nothing) Close() error { return nil }

// explain adds what to do to errors of calls.
func (c *connection) explain(err error) error {
	hint := ""
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, discovery.ErrDown):
		hint = fmt.Sprintf("is etcd up at %s? baton dev brings one up on this machine", strings.Join(c.cfg.Etcd.Endpoints, ", "))
	case errors.Is(err, handoff.ErrDenied):
		hint = fmt.Sprintf("sidecars take certificates of control/NAME or admin/NAME, of their own CA: baton certs show %s says what this one is", c.cfg.TLS.Cert)
	case errors.Is(err, handoff.ErrInDoubt):
		hint = "the answer was lost, and the call may have been carried out: the same command again tells"
	case errors.Is(err, handoff.ErrNotReady), errors.Is(err, handoff.ErrPeer):
		hint = "its sidecars do not answer; when their processes have ended there is nothing left to stop: discovery forgets them after their TTL"
	case errors.Is(err, handoff.ErrVersion):
		hint = "this baton and that sidecar are of releases too far apart: use the baton of the sidecar's release"
	}
	if hint == "" {
		return err
	}
	return &HintError{err, hint}
}
