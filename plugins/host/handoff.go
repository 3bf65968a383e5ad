package host

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	"github.com/batonkv/baton/plugins/wire"
	"github.com/batonkv/baton/proto/codec"
	pluginv1 "github.com/batonkv/baton/proto/plugin/v1"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// handoffs is plugins.Handoff over the plugin.
type handoffs struct{ *Host }

// Import has no deadline of its own: the sidecar answers within the import's.
func (h handoffs) Import(ctx context.Context, group string, m handoff.Import) (handoff.Imported, error) {
	p, err := codec.ToImport(m)
	if err = first(wire.Group(group), err); err != nil {
		return handoff.Imported{}, err
	}
	r, err := askUnbounded(ctx, h.Host, inDoubt, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.ImportResponse, error) {
		return pluginv1.NewHandoffClient(c).Import(ctx, &pluginv1.ImportRequest{Group: group, ImportRequest: p})
	})
	if err != nil {
		return handoff.Imported{}, err
	}
	return codec.FromImported(r.GetImported())
}

func (h handoffs) Get(ctx context.Context, group string, id handoff.ID) (control.Info, error) {
	p, err := codec.ToID(id)
	if err = first(wire.Group(group), err); err != nil {
		return control.Info{}, err
	}
	r, err := ask(ctx, h.Host, nothing, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.GetResponse, error) {
		return pluginv1.NewHandoffClient(c).Get(ctx, &pluginv1.GetRequest{Group: group, Id: p})
	})
	if err != nil {
		return control.Info{}, err
	}
	return control.DecodeInfo(r.GetInfo())
}

func (h handoffs) List(ctx context.Context, group string, q control.Query) (control.Page, error) {
	p, err := control.EncodeQuery(q)
	if err = first(wire.Group(group), err); err != nil {
		return control.Page{}, err
	}
	r, err := ask(ctx, h.Host, nothing, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.ListResponse, error) {
		return pluginv1.NewHandoffClient(c).List(ctx, &pluginv1.ListRequest{Group: group, List: p})
	})
	if err != nil {
		return control.Page{}, err
	}
	return control.DecodePage(r.GetList())
}

func (h handoffs) Abort(ctx context.Context, group string, id handoff.ID) error {
	p, err := codec.ToID(id)
	if err = first(wire.Group(group), err); err != nil {
		return err
	}
	_, err = ask(ctx, h.Host, inDoubt, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.AbortResponse, error) {
		return pluginv1.NewHandoffClient(c).Abort(ctx, &pluginv1.AbortRequest{Group: group, Id: p})
	})
	return err
}

func (h handoffs) Release(ctx context.Context, id handoff.ID, key handoff.Key) error {
	p, err := codec.ToID(id)
	if err = first(wire.Group(id.Group), err); err != nil {
		return err
	}
	_, err = ask(ctx, h.Host, inDoubt, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.ReleaseResponse, error) {
		return pluginv1.NewHandoffClient(c).Release(ctx, &pluginv1.ReleaseRequest{Id: p, Key: key[:]})
	})
	return err
}

func (h handoffs) Watch(ctx context.Context, group string, from control.Cursor) iter.Seq2[control.Notice, error] {
	return func(yield func(control.Notice, error) bool) {
		if err := wire.Group(group); err != nil {
			yield(control.Notice{}, err)
			return
		}
		follow(ctx, h.Host, func(ctx context.Context, c grpc.ClientConnInterface) (grpc.ServerStreamingClient[pluginv1.WatchResponse], error) {
			return pluginv1.NewHandoffClient(c).Watch(ctx, &pluginv1.WatchRequest{Group: group, Incarnation: uint64(from.Incarnation), From: from.Seq})
		}, func(p *pluginv1.WatchResponse) (control.Notice, error) {
			n, err := control.DecodeNotice(p.GetNotice())
			if err == nil {
				from = n.After()
			}
			return n, err
		})(yield)
	}
}
