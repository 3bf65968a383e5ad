// Package serve is the plugin: a hashicorp/go-plugin server of the interfaces of package
// plugins, for the host that started this process. It keeps nothing, so any number of
// hosts have one each, and a host that ends, or ends its plugin, disturbs nobody.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/internal/hlog"
	"github.com/batonkv/baton/plugins/wire"
	"github.com/batonkv/baton/proto/version"
)

// ErrByHand says that no host started this process.
var ErrByHand = errors.New("plugin: no host started this process")

// Launched says whether a host started this process as its plugin.
func Launched() bool { return os.Getenv(plugins.CookieKey) == plugins.CookieValue }

// Config is what is served.
type Config struct {
	Handoff plugins.Handoff
	Reshard plugins.Reshard
	Cluster plugins.Cluster
	Log     *slog.Logger // nil: discards
}

// Run serves until the host says so or ends, or ctx does. It takes the process over:
// standard output is the host's, for the handshake line alone, and an interrupt, which a
// terminal sends to host and plugin alike, is the host's to act on.
func Run(ctx context.Context, c Config) error {
	if !Launched() {
		return ErrByHand
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	gone, err := watchHost(c.Log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var over sync.WaitGroup
	defer over.Wait()
	defer cancel()
	started := make(chan *grpc.Server, 1)
	var began atomic.Bool
	over.Go(func() { stopWith(ctx, gone, started) })
	set := plugin.PluginSet{
		plugins.HandoffPlugin: &handoffServer{api: c.Handoff},
		plugins.ReshardPlugin: &reshardServer{api: c.Reshard},
		plugins.ClusterPlugin: &clusterServer{api: c.Cluster},
	}
	spoken := map[int]plugin.PluginSet{}
	for _, v := range version.Plugin() {
		spoken[v] = set
	}
	secure, greeted, err := security()
	if err != nil {
		return err
	}
	plugin.Serve(&plugin.ServeConfig{
		TLSProvider:      secure,
		HandshakeConfig:  plugin.HandshakeConfig{MagicCookieKey: plugins.CookieKey, MagicCookieValue: plugins.CookieValue},
		VersionedPlugins: spoken,
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			s := grpc.NewServer(append(opts, limits()...)...)
			began.Store(true)
			started <- s
			return s
		},
		Logger: hlog.New(c.Log),
	})
	if err := greeted(); err != nil && began.Load() {
		return err
	}
	select {
	case <-gone:
		return removeSocketDir()
	default:
	}
	if !began.Load() {
		return errors.New("plugin: the server did not start; the log says why")
	}
	return nil
}

// stopWith stops the server, once it has begun, when the host is gone or ctx ends.
func stopWith(ctx context.Context, gone <-chan struct{}, started <-chan *grpc.Server) {
	select {
	case s := <-started:
		select {
		case <-gone:
		case <-ctx.Done():
		}
		s.Stop()
	case <-ctx.Done():
	}
}

// limits bound what a host can make the plugin hold, and let it look whether it lives.
func limits() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(wire.MaxMessage), grpc.MaxSendMsgSize(wire.MaxMessage), grpc.MaxConcurrentStreams(1 << 12),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
}

// removeSocketDir removes the directory that a host which is gone made for the socket.
func removeSocketDir() error {
	dir := os.Getenv(plugin.EnvUnixSocketDir)
	if dir == "" {
		return nil
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) { // fails when something else is in it
		return fmt.Errorf("plugin: after the end of its host: %w", err)
	}
	return nil
}
