package serve

import (
	"context"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/wire"
	"github.com/batonkv/baton/proto/codec"
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	"github.com/batonkv/baton/proto/errs"
	pluginv1 "github.com/batonkv/baton/proto/plugin/v1"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// handoffServer is the service Handoff. Each call decodes, asks, encodes.
type handoffServer struct {
	plugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedHandoffServer
	api plugins.Handoff
}

// GRPCServer implements plugin.GRPCPlugin.
func (s *handoffServer) GRPCServer(_ *plugin.GRPCBroker, r *grpc.Server) error {
	pluginv1.RegisterHandoffServer(r, s)
	return nil
}

// GRPCClient implements plugin.GRPCPlugin, whose other half a host has.
func (*handoffServer) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errServer
}

func (s *handoffServer) Import(ctx context.Context, req *pluginv1.ImportRequest) (*pluginv1.ImportResponse, error) {
	m, err := codec.FromImport(req.GetImportRequest())
	if err := first(wire.Group(req.GetGroup()), err); err != nil {
		return nil, errs.ToStatus(err)
	}
	got, err := s.api.Import(ctx, req.GetGroup(), m)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := codec.ToImported(got)
	return &pluginv1.ImportResponse{Imported: p}, errs.ToStatus(err)
}

// id checks the group and the id of a call.
func id(group string, p *commonv1.HandoffID) (handoff.ID, error) {
	id, err := codec.FromID(p)
	return id, first(wire.Group(group), err)
}

func (s *handoffServer) Get(ctx context.Context, req *pluginv1.GetRequest) (*pluginv1.GetResponse, error) {
	id, err := id(req.GetGroup(), req.GetId())
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	got, err := s.api.Get(ctx, req.GetGroup(), id)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := control.EncodeInfo(got)
	return &pluginv1.GetResponse{Info: p}, errs.ToStatus(err)
}

func (s *handoffServer) List(ctx context.Context, req *pluginv1.ListRequest) (*pluginv1.ListResponse, error) {
	q, err := control.DecodeQuery(req.GetList())
	if err := first(wire.Group(req.GetGroup()), err); err != nil {
		return nil, errs.ToStatus(err)
	}
	got, err := s.api.List(ctx, req.GetGroup(), q)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := control.EncodePage(got)
	return &pluginv1.ListResponse{List: p}, errs.ToStatus(err)
}

func (s *handoffServer) Abort(ctx context.Context, req *pluginv1.AbortRequest) (*pluginv1.AbortResponse, error) {
	id, err := id(req.GetGroup(), req.GetId())
	if err == nil {
		err = s.api.Abort(ctx, req.GetGroup(), id)
	}
	return &pluginv1.AbortResponse{}, errs.ToStatus(err)
}

func (s *handoffServer) Release(ctx context.Context, req *pluginv1.ReleaseRequest) (*pluginv1.ReleaseResponse, error) {
	id, err := id(req.GetId().GetGroup(), req.GetId())
	if err == nil {
		var key handoff.Key
		if key, err = codec.FromKey(req.GetKey()); err == nil {
			err = s.api.Release(ctx, id, key)
		}
	}
	return &pluginv1.ReleaseResponse{}, errs.ToStatus(err)
}

func (s *handoffServer) Watch(req *pluginv1.WatchRequest, stream grpc.ServerStreamingServer[pluginv1.WatchResponse]) error {
	if err := wire.Group(req.GetGroup()); err != nil {
		return errs.ToStatus(err)
	}
	from := control.Cursor{Incarnation: handoff.Incarnation(req.GetIncarnation()), Seq: req.GetFrom()}
	for n, err := range s.api.Watch(stream.Context(), req.GetGroup(), from) {
		if err != nil {
			return errs.ToStatus(err)
		}
		p, err := control.EncodeNotice(n)
		if err != nil {
			return errs.ToStatus(err)
		}
		if err := stream.Send(&pluginv1.WatchResponse{Notice: p}); err != nil {
			return err
		}
	}
	return nil
}
