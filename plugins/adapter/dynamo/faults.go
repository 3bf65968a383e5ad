package dynamo

import (
	"context"
	"errors"

	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/reshard"
)

// kinds says as which of Dynamo's errors a sentinel arrives: the first that matches. None
// of them takes the instance out of use.
var kinds = []struct {
	kind string
	of   []error
}{
	{wire.InvalidArgument, []error{handoff.ErrBound, handoff.ErrVersion, handoff.ErrModel, handoff.ErrPlan, handoff.ErrPosition, handoff.ErrWeights, handoff.ErrRole,
		layout.ErrGeometry, reshard.ErrUncovered, reshard.ErrMismatch}},
	{wire.NotFound, []error{handoff.ErrGone, handoff.ErrUnknown, handoff.ErrGroup}},
	{wire.Conflict, []error{handoff.ErrTaken}},
	{wire.ResourceExhausted, []error{handoff.ErrCapacity, handoff.ErrDeadline, context.DeadlineExceeded}},
	{wire.Cancelled, []error{handoff.ErrAborted, context.Canceled, plane.ErrStopped, plane.ErrKilled}},
	{wire.Unavailable, []error{handoff.ErrDraining, handoff.ErrNotReady, handoff.ErrPeer, handoff.ErrTransfer, handoff.ErrOrder, plane.ErrClosed}},
}

// Fault is err as a caller gets it: "handoff.gone: why". The name is for programs.
func Fault(err error) error {
	if _, ok := errors.AsType[*wire.Fault](err); ok || err == nil {
		return err
	}
	kind := wire.Unknown
	for _, k := range kinds {
		for _, is := range k.of {
			if kind == wire.Unknown && errors.Is(err, is) {
				kind = k.kind
			}
		}
	}
	if name := errs.Name(err); name != "" {
		return plane.Fault(kind, "%s: %v", name, err)
	}
	return plane.Fault(kind, "%v", err)
}
