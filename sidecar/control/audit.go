package control

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/batonkv/baton/proto/codec"
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	controlv1 "github.com/batonkv/baton/proto/control/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Audited is one call, after its answer; of Watch, its start.
type Audited struct {
	By      string // URI of the caller's certificate
	Call    string // as the service names it: Import, Lifecycle, …
	Asked   string // Lifecycle, Drain: the action; SetWeightsEpoch: "epoch 7"; else ""
	ID      handoff.ID
	Label   string // of Import
	Err     error  // what was answered; ErrDenied: By may not call
	Elapsed time.Duration
}

// ReadOnly reports whether the call changes nothing.
func (a Audited) ReadOnly() bool {
	switch a.Call {
	case "Get", "Status", "List", "Geometry", "Links", "Watch":
		return true
	}
	return false
}

// Option is of Register.
type Option func(*server)

// WithAudit has f hear of every call, those that are refused too. The call waits for f, which
// returns at once; any number of calls are in it together.
func WithAudit(f func(Audited)) Option { return func(s *server) { s.audit = f } }

// audited is the service with every unary call told to tell. It stands around a call's decoding,
// so what is malformed is told as well.
func audited(desc grpc.ServiceDesc, tell func(Audited)) *grpc.ServiceDesc {
	methods := make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: func(srv any, ctx context.Context,
			decode func(any) error, next grpc.UnaryServerInterceptor) (any, error) {
			began, a := time.Now(), Audited{By: caller(ctx), Call: m.MethodName}
			answer, err := m.Handler(srv, ctx, func(req any) error {
				if err := decode(req); err != nil {
					return err
				}
				a.about(req)
				return nil
			}, next)
			a.Err, a.Elapsed = errs.FromStatus(err), time.Since(began)
			tell(a)
			return answer, err
		}}
	}
	desc.Methods = methods
	return &desc
}

// about takes what a request names. Nothing of it is checked yet.
func (a *Audited) about(req any) {
	switch r := req.(type) {
	case *controlv1.ImportRequest:
		m := r.GetImportRequest()
		a.named(m.GetManifest().GetId())
		a.Label = strings.ToValidUTF8(m.GetLabel()[:min(len(m.GetLabel()), codec.MaxString)], "")
	case *controlv1.GetRequest:
		a.named(r.GetId())
	case *controlv1.AbortRequest:
		a.named(r.GetId())
	case *controlv1.ReleaseRequest:
		a.named(r.GetId())
	case *controlv1.SetWeightsEpochRequest:
		a.Asked = fmt.Sprintf("epoch %d", r.GetEpoch())
	case *controlv1.LifecycleRequest:
		if act, err := codec.FromAction(r.GetAction()); err == nil {
			a.Asked = act.String()
		}
	case *controlv1.DrainRequest:
		a.Asked = handoff.ActionStopIntake.String()
		if r.GetResume() {
			a.Asked = handoff.ActionResumeIntake.String()
		}
	}
}

func (a *Audited) named(p *commonv1.HandoffID) {
	if id, err := codec.FromID(p); err == nil {
		a.ID = id
	}
}
