package host

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/wire"
	pluginv1 "github.com/batonkv/baton/proto/plugin/v1"
	"github.com/batonkv/baton/sidecar/handoff"
)

// first is the first error that is one.
func first(es ...error) error {
	for _, err := range es {
		if err != nil {
			return err
		}
	}
	return nil
}

// reshards is plugins.Reshard over the plugin.
type reshards struct{ *Host }

func (h reshards) Plan(ctx context.Context, q plugins.PlanQuery) (plugins.Plan, error) {
	p, err := wire.EncodePlanQuery(q)
	if err != nil {
		return plugins.Plan{}, err
	}
	r, err := ask(ctx, h.Host, nothing, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.PlanResponse, error) {
		return pluginv1.NewReshardClient(c).Plan(ctx, p)
	})
	if err != nil {
		return plugins.Plan{}, err
	}
	return wire.DecodePlan(r)
}

func (h reshards) Explain(ctx context.Context, q plugins.PlanQuery, tokens int32, f plugins.Format) ([]byte, error) {
	p, err := wire.EncodePlanQuery(q)
	format, ferr := wire.EncodeFormat(f)
	if err = first(err, ferr); err != nil {
		return nil, err
	}
	r, err := ask(ctx, h.Host, nothing, func(ctx context.Context, c grpc.ClientConnInterface) (*pluginv1.ExplainResponse, error) {
		return pluginv1.NewReshardClient(c).Explain(ctx, &pluginv1.ExplainRequest{Plan: p, Tokens: tokens, Format: format})
	})
	if err == nil && len(r.GetDocument()) > wire.MaxDocument {
		err = fmt.Errorf("%w: the document has %d bytes, at most %d", handoff.ErrBound, len(r.GetDocument()), wire.MaxDocument)
	}
	if err != nil {
		return nil, err
	}
	return r.GetDocument(), nil
}
