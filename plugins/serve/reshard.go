package serve

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/wire"
	"github.com/batonkv/baton/proto/errs"
	pluginv1 "github.com/batonkv/baton/proto/plugin/v1"
	"github.com/batonkv/baton/sidecar/handoff"
)

var errServer = errors.New("plugin: this is the server's half")

// first is the first error that is one.
func first(es ...error) error {
	for _, err := range es {
		if err != nil {
			return err
		}
	}
	return nil
}

// reshardServer is the service Reshard.
type reshardServer struct {
	plugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedReshardServer
	api plugins.Reshard
}

// GRPCServer implements plugin.GRPCPlugin.
func (s *reshardServer) GRPCServer(_ *plugin.GRPCBroker, r *grpc.Server) error {
	pluginv1.RegisterReshardServer(r, s)
	return nil
}

// GRPCClient implements plugin.GRPCPlugin, whose other half a host has.
func (*reshardServer) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errServer
}

func (s *reshardServer) Plan(ctx context.Context, req *pluginv1.PlanRequest) (*pluginv1.PlanResponse, error) {
	q, err := wire.DecodePlanQuery(req)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	got, err := s.api.Plan(ctx, q)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := wire.EncodePlan(got)
	return p, errs.ToStatus(err)
}

func (s *reshardServer) Explain(ctx context.Context, req *pluginv1.ExplainRequest) (*pluginv1.ExplainResponse, error) {
	q, err := wire.DecodePlanQuery(req.GetPlan())
	f, ferr := wire.DecodeFormat(req.GetFormat())
	if err := first(err, ferr); err != nil {
		return nil, errs.ToStatus(err)
	}
	b, err := s.api.Explain(ctx, q, req.GetTokens(), f)
	if err == nil && len(b) > wire.MaxDocument {
		err = fmt.Errorf("%w: the document has %d bytes, at most %d: take fewer ranks", handoff.ErrBound, len(b), wire.MaxDocument)
	}
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	return &pluginv1.ExplainResponse{Document: b}, nil
}
