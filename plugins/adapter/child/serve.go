// Package child is an adapter in a process of its own: Serve is its main, Open launches
// it from a sidecar. Between them is the gRPC of proto/adapter/v1, by hashicorp/go-plugin,
// so an adapter may be written in any language.
//
// The sidecar holds the process on a lifeline (package lifeline): it ends with its
// sidecar, however that ends. Its exit disturbs nothing but its session.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/plugins/adapter"
	adapterv1 "github.com/batonkv/baton/proto/adapter/v1"
	"github.com/batonkv/baton/proto/codec"
)

// The handshake. The cookie is no secret: it tells an adapter from a program that was
// started by hand.
const (
	CookieKey   = "BATON_ADAPTER"
	CookieValue = "0f6c1b7a94d34e5f8a2b9c5d7e13a860"
	Version     = 1 // of the protocol
	Name        = "adapter"
)

var handshake = plugin.HandshakeConfig{MagicCookieKey: CookieKey, MagicCookieValue: CookieValue}

// Serve is the main function of a program that is an adapter. It ends the process.
func Serve(a adapter.Adapter) {
	if os.Getenv(CookieKey) != CookieValue {
		fmt.Fprintf(os.Stderr, "%s is an adapter of baton, which its sidecar starts. Name it in the sidecar's configuration:\n\n"+
			"adapters:\n  - name: mine\n    command: [%s]\n", os.Args[0], os.Args[0])
		os.Exit(2)
	}
	if gone := lifeline.Watch(); gone != nil {
		go func() { // until the process ends
			<-gone
			os.Exit(0)
		}()
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  handshake,
		VersionedPlugins: map[int]plugin.PluginSet{Version: {Name: &link{a: a}}},
		Logger:           hclog.New(&hclog.LoggerOptions{Level: hclog.Error, Output: os.Stderr}),
		GRPCServer: func(o []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(o, grpc.MaxRecvMsgSize(codec.MaxMessage))...)
		},
	})
	os.Exit(0)
}

// link is both ends as go-plugin wants them.
type link struct {
	plugin.NetRPCUnsupportedPlugin
	a adapter.Adapter // nil in the sidecar
}

var _ plugin.GRPCPlugin = (*link)(nil)

func (l *link) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	if l.a == nil {
		return errors.New("adapter: there is none to serve")
	}
	adapterv1.RegisterAdapterServer(s, newServer(l.a))
	return nil
}

func (l *link) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return &client{c: adapterv1.NewAdapterClient(conn)}, nil
}
