package control

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/batonkv/baton/proto/codec"
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	controlv1 "github.com/batonkv/baton/proto/control/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Authorize says whether the holder of a certificate with this URI may call.
type Authorize func(identity string) error

// ControlPlanes lets control/… and admin/… call, and no sidecar.
func ControlPlanes(identity string) error {
	_, name, _ := strings.Cut(identity, "://")
	if strings.HasPrefix(name, "control/") || strings.HasPrefix(name, "admin/") {
		return nil
	}
	return fmt.Errorf("%q may not call: want a certificate of control/… or admin/…: baton certs makes one", identity)
}

// Register puts svc on a server that verifies client certificates. A nil auth is
// ControlPlanes.
func Register(r grpc.ServiceRegistrar, svc Service, auth Authorize, opts ...Option) {
	if auth == nil {
		auth = ControlPlanes
	}
	s := &server{svc: svc, auth: auth, audit: func(Audited) {}}
	for _, o := range opts {
		o(s)
	}
	r.RegisterService(audited(controlv1.Control_ServiceDesc, s.audit), s)
}

type server struct {
	controlv1.UnimplementedControlServer
	svc   Service
	auth  Authorize
	audit func(Audited)
}

// caller is the URI of the verified certificate behind a call.
func caller(ctx context.Context) string {
	if p, ok := grpcpeer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			if uris := info.State.PeerCertificates[0].URIs; len(uris) > 0 {
				return uris[0].String()
			}
		}
	}
	return ""
}

func (s *server) allow(ctx context.Context) error {
	if err := s.auth(caller(ctx)); err != nil {
		return errs.ToStatus(fmt.Errorf("%w: %w", handoff.ErrDenied, err))
	}
	return errs.ToStatus(checkVersion(ctx))
}

// id checks who calls, and the id of the call.
func (s *server) id(ctx context.Context, p *commonv1.HandoffID) (handoff.ID, error) {
	if err := s.allow(ctx); err != nil {
		return handoff.ID{}, err
	}
	id, err := codec.FromID(p)
	return id, errs.ToStatus(err)
}

func (s *server) Import(ctx context.Context, req *controlv1.ImportRequest) (*controlv1.ImportResponse, error) {
	if err := s.allow(ctx); err != nil {
		return nil, err
	}
	m, err := codec.FromImport(req.GetImportRequest())
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	got, err := s.svc.Import(ctx, m)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := codec.ToImported(got)
	return &controlv1.ImportResponse{Imported: p}, errs.ToStatus(err)
}

func (s *server) Get(ctx context.Context, req *controlv1.GetRequest) (*controlv1.GetResponse, error) {
	id, err := s.id(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	got, err := s.svc.Get(ctx, id)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := EncodeInfo(got)
	return p, errs.ToStatus(err)
}

func (s *server) Abort(ctx context.Context, req *controlv1.AbortRequest) (*controlv1.AbortResponse, error) {
	id, err := s.id(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	var key handoff.Key
	if len(req.GetKey()) > 0 {
		key, err = codec.FromKey(req.GetKey())
	}
	if err == nil {
		err = s.svc.Abort(ctx, id, key)
	}
	return &controlv1.AbortResponse{}, errs.ToStatus(err)
}

func (s *server) Release(ctx context.Context, req *controlv1.ReleaseRequest) (*controlv1.ReleaseResponse, error) {
	id, err := s.id(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	key, err := codec.FromKey(req.GetKey())
	if err == nil {
		err = s.svc.Release(ctx, id, key)
	}
	return &controlv1.ReleaseResponse{}, errs.ToStatus(err)
}

func (s *server) SetWeightsEpoch(ctx context.Context, req *controlv1.SetWeightsEpochRequest) (*controlv1.SetWeightsEpochResponse, error) {
	if err := s.allow(ctx); err != nil {
		return nil, err
	}
	return &controlv1.SetWeightsEpochResponse{}, errs.ToStatus(s.svc.SetWeightsEpoch(ctx, req.GetEpoch()))
}

func (s *server) Reset(ctx context.Context, _ *controlv1.ResetRequest) (*controlv1.ResetResponse, error) {
	if err := s.allow(ctx); err != nil {
		return nil, err
	}
	return &controlv1.ResetResponse{}, errs.ToStatus(s.svc.Reset(ctx))
}

func (s *server) Status(ctx context.Context, _ *controlv1.StatusRequest) (*controlv1.StatusResponse, error) {
	if err := s.allow(ctx); err != nil {
		return nil, err
	}
	got, err := s.svc.Status(ctx)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := EncodeStatus(got)
	return p, errs.ToStatus(err)
}

func (s *server) List(ctx context.Context, req *controlv1.ListRequest) (*controlv1.ListResponse, error) {
	if err := s.allow(ctx); err != nil {
		return nil, err
	}
	q, err := DecodeQuery(req)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	got, err := s.svc.List(ctx, q)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := EncodePage(got)
	return p, errs.ToStatus(err)
}

func (s *server) Geometry(ctx context.Context, _ *controlv1.GeometryRequest) (*controlv1.GeometryResponse, error) {
	if err := s.allow(ctx); err != nil {
		return nil, err
	}
	got, err := s.svc.Geometry(ctx)
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := EncodeGeometry(got)
	return p, errs.ToStatus(err)
}

func (s *server) Lifecycle(ctx context.Context, req *controlv1.LifecycleRequest) (*controlv1.LifecycleResponse, error) {
	if err := s.allow(ctx); err != nil {
		return nil, err
	}
	a, err := codec.FromAction(req.GetAction())
	if err == nil {
		err = s.svc.Do(ctx, a)
	}
	return &controlv1.LifecycleResponse{}, errs.ToStatus(err)
}

func (s *server) Drain(ctx context.Context, req *controlv1.DrainRequest) (*controlv1.DrainResponse, error) {
	if err := s.allow(ctx); err != nil {
		return nil, err
	}
	got, err := s.svc.Drain(ctx, req.GetResume())
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := EncodeDrain(got)
	return p, errs.ToStatus(err)
}

func (s *server) Watch(req *controlv1.WatchRequest, stream controlv1.Control_WatchServer) error {
	ctx := stream.Context()
	err := s.allow(ctx)
	s.audit(Audited{By: caller(ctx), Call: "Watch", Err: errs.FromStatus(err)})
	if err != nil {
		return err
	}
	for n, err := range s.svc.Watch(ctx, Cursor{handoff.Incarnation(req.GetIncarnation()), req.GetFrom()}) {
		if err != nil {
			return errs.ToStatus(err)
		}
		p, err := EncodeNotice(n)
		if err != nil {
			return errs.ToStatus(err)
		}
		if err := stream.Send(p); err != nil {
			return err
		}
	}
	return nil
}
