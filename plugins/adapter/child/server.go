package child

import (
	"context"

	"google.golang.org/grpc"

	"github.com/batonkv/baton/plugins/adapter"
	adapterv1 "github.com/batonkv/baton/proto/adapter/v1"
	"github.com/batonkv/baton/proto/errs"
)

// server is the adapter's side: it decodes, and calls the adapter.
type server struct {
	adapterv1.UnimplementedAdapterServer
	a     adapter.Adapter
	asker adapter.Asker // nil: it asks nothing
	asks  *questions
	reads adapter.BlockReader // nil: it reads none
	feed  *feed
	count func() map[string]float64 // of a Counter
}

func newServer(a adapter.Adapter) *server {
	o := adapter.Ordered(a)
	s := &server{a: o, count: func() map[string]float64 { return nil }}
	if counter, ok := a.(adapter.Counter); ok {
		s.count = counter.Counts
	}
	if asker, ok := o.(adapter.Asker); ok {
		s.asker, s.asks = asker, newQuestions()
	}
	if reader, ok := o.(adapter.BlockReader); ok {
		s.reads, s.feed = reader, newFeed()
	}
	return s
}

// done answers a call.
func done[R any](r *R, err error) (*R, error) {
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	return r, nil
}

func (s *server) Register(ctx context.Context, _ *adapterv1.RegisterRequest) (*adapterv1.RegisterResponse, error) {
	i, err := s.a.Register(ctx)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := encodeInfo(i)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p.Asks, p.Blocks = s.asker != nil, s.reads != nil
	return p, nil
}

func (s *server) Configure(ctx context.Context, p *adapterv1.ConfigureRequest) (*adapterv1.ConfigureResponse, error) {
	if n := len(p.GetSection()); n > adapter.MaxSection {
		return nil, errs.ToStatus(bound("section", "%d bytes, at most %d", n, adapter.MaxSection))
	}
	err := s.a.Configure(ctx, p.GetSection())
	if err == nil && s.asker != nil {
		s.asker.Ask(s.asks)
	}
	if err == nil && s.reads != nil {
		s.reads.ReadBlocks(s.feed)
	}
	return done(&adapterv1.ConfigureResponse{}, err)
}

// Ask carries what the adapter asks, until the sidecar ends it.
func (s *server) Ask(stream grpc.BidiStreamingServer[adapterv1.Answer, adapterv1.Question]) error {
	if s.asker == nil {
		return s.UnimplementedAdapterServer.Ask(stream)
	}
	return s.asks.serve(stream)
}

// Blocks carries what the adapter reads, until it or the sidecar ends it.
func (s *server) Blocks(stream grpc.BidiStreamingServer[adapterv1.BlocksRequest, adapterv1.BlocksResponse]) error {
	if s.reads == nil {
		return s.UnimplementedAdapterServer.Blocks(stream)
	}
	return s.feed.serve(stream)
}

func (s *server) Sync(ctx context.Context, p *adapterv1.SyncRequest) (*adapterv1.SyncResponse, error) {
	state, err := decodeState(p.GetState())
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	err = s.a.Sync(ctx, state)
	return done(&adapterv1.SyncResponse{Counts: s.count()}, err)
}

func (s *server) Notify(ctx context.Context, p *adapterv1.NotifyRequest) (*adapterv1.NotifyResponse, error) {
	u, err := decodeUpdate(p)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	err = s.a.Notify(ctx, u)
	return done(&adapterv1.NotifyResponse{Counts: s.count()}, err)
}

func (s *server) Drain(ctx context.Context, _ *adapterv1.DrainRequest) (*adapterv1.DrainResponse, error) {
	return done(&adapterv1.DrainResponse{}, s.a.Drain(ctx))
}
