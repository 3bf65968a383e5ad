package serve

import (
	"context"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/wire"
	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/proto/errs"
	pluginv1 "github.com/batonkv/baton/proto/plugin/v1"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/transfer/layout"
)

// clusterServer is the service Cluster.
type clusterServer struct {
	plugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedClusterServer
	api plugins.Cluster
}

// GRPCServer implements plugin.GRPCPlugin.
func (s *clusterServer) GRPCServer(_ *plugin.GRPCBroker, r *grpc.Server) error {
	pluginv1.RegisterClusterServer(r, s)
	return nil
}

// GRPCClient implements plugin.GRPCPlugin, whose other half a host has.
func (*clusterServer) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errServer
}

func (s *clusterServer) Groups(ctx context.Context, _ *pluginv1.GroupsRequest) (*pluginv1.GroupsResponse, error) {
	gs, err := s.api.Groups(ctx)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := wire.EncodeGroups(gs)
	return p, errs.ToStatus(err)
}

func (s *clusterServer) Watch(_ *pluginv1.ClusterWatchRequest, stream grpc.ServerStreamingServer[pluginv1.GroupsResponse]) error {
	for gs, err := range s.api.Watch(stream.Context()) {
		if err != nil {
			return errs.ToStatus(err)
		}
		p, err := wire.EncodeGroups(gs)
		if err != nil {
			return errs.ToStatus(err)
		}
		if err := stream.Send(p); err != nil {
			return err
		}
	}
	return nil
}

func (s *clusterServer) Describe(ctx context.Context, req *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	if err := wire.Group(req.GetGroup()); err != nil {
		return nil, errs.ToStatus(err)
	}
	d, err := s.api.Describe(ctx, req.GetGroup())
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	st, err := control.EncodeStatus(d.Status)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p := &pluginv1.DescribeResponse{Status: st}
	if len(d.Geometry.Shards) > 0 { // else the group is not complete
		p.Geometry, err = control.EncodeGeometry(d.Geometry)
	}
	return p, errs.ToStatus(err)
}

func (s *clusterServer) Links(ctx context.Context, req *pluginv1.LinksRequest) (*pluginv1.LinksResponse, error) {
	if err := wire.Rank(req.GetGroup(), req.GetRank()); err != nil {
		return nil, errs.ToStatus(err)
	}
	q := control.LinksQuery{Probe: req.GetLinks().GetProbe(), Meet: req.GetLinks().GetMeet()}
	l, err := s.api.Links(ctx, req.GetGroup(), layout.Rank(req.GetRank()), q)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := control.EncodeLinks(l)
	return &pluginv1.LinksResponse{Links: p}, errs.ToStatus(err)
}

func (s *clusterServer) Lifecycle(ctx context.Context, req *pluginv1.LifecycleRequest) (*pluginv1.LifecycleResponse, error) {
	a, err := codec.FromAction(req.GetAction())
	if err = first(wire.Group(req.GetGroup()), err); err == nil {
		err = s.api.Do(ctx, req.GetGroup(), a)
	}
	return &pluginv1.LifecycleResponse{}, errs.ToStatus(err)
}

func (s *clusterServer) SetWeightsEpoch(ctx context.Context, req *pluginv1.SetWeightsEpochRequest) (*pluginv1.SetWeightsEpochResponse, error) {
	err := wire.Group(req.GetGroup())
	if err == nil {
		err = s.api.SetWeightsEpoch(ctx, req.GetGroup(), req.GetEpoch())
	}
	return &pluginv1.SetWeightsEpochResponse{}, errs.ToStatus(err)
}

func (s *clusterServer) Drain(ctx context.Context, req *pluginv1.DrainRequest) (*pluginv1.DrainResponse, error) {
	if err := wire.Group(req.GetGroup()); err != nil {
		return nil, errs.ToStatus(err)
	}
	d, err := s.api.Drain(ctx, req.GetGroup(), req.GetResume())
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := control.EncodeDrain(d)
	return &pluginv1.DrainResponse{Drain: p}, errs.ToStatus(err)
}

func (s *clusterServer) Reset(ctx context.Context, req *pluginv1.ResetRequest) (*pluginv1.ResetResponse, error) {
	err := wire.Group(req.GetGroup())
	if err == nil {
		err = s.api.Reset(ctx, req.GetGroup())
	}
	return &pluginv1.ResetResponse{}, errs.ToStatus(err)
}
