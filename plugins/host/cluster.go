package host

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/wire"
	"github.com/batonkv/baton/proto/codec"
	controlv1 "github.com/batonkv/baton/proto/control/v1"
	pluginv1 "github.com/batonkv/baton/proto/plugin/v1"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// clusters is plugins.Cluster over the plugin.
type clusters struct{ *Host }

func (h clusters) Groups(ctx context.Context) ([]plugins.Group, error) {
	r, err := ask(ctx, h.Host, nothing, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.GroupsResponse, error) {
		return pluginv1.NewClusterClient(c).Groups(ctx, &pluginv1.GroupsRequest{})
	})
	if err != nil {
		return nil, err
	}
	return wire.DecodeGroups(r)
}

func (h clusters) Watch(ctx context.Context) iter.Seq2[[]plugins.Group, error] {
	return follow(ctx, h.Host, func(ctx context.Context, c grpc.ClientConnInterface) (grpc.ServerStreamingClient[pluginv1.GroupsResponse], error) {
		return pluginv1.NewClusterClient(c).Watch(ctx, &pluginv1.ClusterWatchRequest{})
	}, wire.DecodeGroups)
}

func (h clusters) Describe(ctx context.Context, group string) (d plugins.Detail, err error) {
	if err := wire.Group(group); err != nil {
		return d, err
	}
	r, err := ask(ctx, h.Host, nothing, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.DescribeResponse, error) {
		return pluginv1.NewClusterClient(c).Describe(ctx, &pluginv1.DescribeRequest{Group: group})
	})
	if err != nil {
		return d, err
	}
	if d.Status, err = control.DecodeStatus(r.GetStatus()); err != nil || r.GetGeometry() == nil {
		return d, err
	}
	d.Geometry, err = control.DecodeGeometry(r.GetGeometry())
	return d, err
}

func (h clusters) Links(ctx context.Context, group string, rank layout.Rank, q control.LinksQuery) (control.Links, error) {
	if err := wire.Rank(group, int32(rank)); err != nil {
		return control.Links{}, err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.cfg.Call+q.Takes())
		defer cancel()
	}
	r, err := ask(ctx, h.Host, nothing, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.LinksResponse, error) {
		return pluginv1.NewClusterClient(c).Links(ctx, &pluginv1.LinksRequest{Group: group, Rank: int32(rank),
			Links: &controlv1.LinksRequest{Probe: q.Probe, Meet: q.Meet}})
	})
	if err != nil {
		return control.Links{}, err
	}
	return control.DecodeLinks(r.GetLinks())
}

func (h clusters) Do(ctx context.Context, group string, a handoff.Action) error {
	p, err := codec.ToAction(a)
	if err = first(wire.Group(group), err); err != nil {
		return err
	}
	_, err = ask(ctx, h.Host, inDoubt, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.LifecycleResponse, error) {
		return pluginv1.NewClusterClient(c).Lifecycle(ctx, &pluginv1.LifecycleRequest{Group: group, Action: p})
	})
	return err
}

func (h clusters) SetWeightsEpoch(ctx context.Context, group string, epoch uint64) error {
	if err := wire.Group(group); err != nil {
		return err
	}
	_, err := ask(ctx, h.Host, inDoubt, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.SetWeightsEpochResponse, error) {
		return pluginv1.NewClusterClient(c).SetWeightsEpoch(ctx, &pluginv1.SetWeightsEpochRequest{Group: group, Epoch: epoch})
	})
	return err
}

func (h clusters) Drain(ctx context.Context, group string, resume bool) (control.Drain, error) {
	if err := wire.Group(group); err != nil {
		return control.Drain{}, err
	}
	r, err := ask(ctx, h.Host, inDoubt, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.DrainResponse, error) {
		return pluginv1.NewClusterClient(c).Drain(ctx, &pluginv1.DrainRequest{Group: group, Resume: resume})
	})
	if err != nil {
		return control.Drain{}, err
	}
	return control.DecodeDrain(r.GetDrain())
}

func (h clusters) Reset(ctx context.Context, group string) error {
	if err := wire.Group(group); err != nil {
		return err
	}
	_, err := ask(ctx, h.Host, inDoubt, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.ResetResponse, error) {
		return pluginv1.NewClusterClient(c).Reset(ctx, &pluginv1.ResetRequest{Group: group})
	})
	return err
}
