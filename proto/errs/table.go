package errs

import (
	"context"

	"google.golang.org/grpc/codes"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
)

// entry ties a sentinel to its name on the wire and to the gRPC code that tools
// without this table see.
type entry struct {
	name string
	err  error
	code codes.Code
}

// table is in order of precedence: the first match gives an error its Name and
// code. Names are never reused or renamed. A test compares it with the sources.
var table = []entry{
	{"handoff.gone", handoff.ErrGone, codes.NotFound},
	{"handoff.taken", handoff.ErrTaken, codes.AlreadyExists},
	{"handoff.model", handoff.ErrModel, codes.FailedPrecondition},
	{"handoff.plan", handoff.ErrPlan, codes.FailedPrecondition},
	{"handoff.position", handoff.ErrPosition, codes.FailedPrecondition},
	{"handoff.weights", handoff.ErrWeights, codes.FailedPrecondition},
	{"handoff.capacity", handoff.ErrCapacity, codes.ResourceExhausted},
	{"handoff.deadline", handoff.ErrDeadline, codes.DeadlineExceeded},
	{"handoff.aborted", handoff.ErrAborted, codes.Aborted},
	{"handoff.peer", handoff.ErrPeer, codes.Unavailable},
	{"handoff.transfer", handoff.ErrTransfer, codes.DataLoss},
	{"handoff.checksum", handoff.ErrChecksum, codes.DataLoss},
	{"handoff.in-doubt", handoff.ErrInDoubt, codes.Unknown},
	{"handoff.not-ready", handoff.ErrNotReady, codes.Unavailable},
	{"handoff.attached", handoff.ErrAttached, codes.AlreadyExists},
	{"handoff.attach", handoff.ErrAttach, codes.InvalidArgument},
	{"handoff.relaunch", handoff.ErrRelaunch, codes.FailedPrecondition},
	{"handoff.unknown", handoff.ErrUnknown, codes.NotFound},
	{"handoff.engine", handoff.ErrEngine, codes.Internal},
	{"handoff.role", handoff.ErrRole, codes.FailedPrecondition},
	{"handoff.quiet", handoff.ErrQuiet, codes.FailedPrecondition},
	{"handoff.bound", handoff.ErrBound, codes.InvalidArgument},
	{"handoff.draining", handoff.ErrDraining, codes.FailedPrecondition},
	{"handoff.group", handoff.ErrGroup, codes.NotFound},
	{"handoff.denied", handoff.ErrDenied, codes.PermissionDenied},
	{"handoff.version", handoff.ErrVersion, codes.Unimplemented},
	{"handoff.host", handoff.ErrHost, codes.Unavailable},
	{"handoff.section", handoff.ErrSection, codes.InvalidArgument},
	{"handoff.order", handoff.ErrOrder, codes.FailedPrecondition},

	{"transfer.closed", transfer.ErrClosed, codes.Unavailable},
	{"transfer.bounds", transfer.ErrBounds, codes.OutOfRange},
	{"transfer.memory", transfer.ErrMemory, codes.FailedPrecondition},
	{"transfer.peer", transfer.ErrPeer, codes.Unavailable},
	{"transfer.mover", transfer.ErrMover, codes.Unavailable},
	{"transfer.canceled", transfer.ErrCanceled, codes.Canceled},
	{"transfer.busy", transfer.ErrBusy, codes.FailedPrecondition},
	{"choice.none", choice.ErrNone, codes.FailedPrecondition},
	{"transfer.convert", transfer.ErrConvert, codes.Unimplemented},
	{"transfer.full", transfer.ErrFull, codes.ResourceExhausted},
	{"transfer.lost", transfer.ErrLost, codes.Aborted},

	{"reshard.uncovered", reshard.ErrUncovered, codes.FailedPrecondition},
	{"reshard.mismatch", reshard.ErrMismatch, codes.InvalidArgument},
	{"lower.job", lower.ErrJob, codes.InvalidArgument},
	{"lower.pair", lower.ErrPair, codes.InvalidArgument},
	{"lower.template", lower.ErrTemplate, codes.InvalidArgument},
	{"lower.split", lower.ErrSplit, codes.Unimplemented},
	{"layout.geometry", layout.ErrGeometry, codes.InvalidArgument},

	{"discovery.lost", discovery.ErrLost, codes.Unavailable},
	{"discovery.taken", discovery.ErrTaken, codes.AlreadyExists},
	{"discovery.record", discovery.ErrRecord, codes.InvalidArgument},
	{"discovery.down", discovery.ErrDown, codes.Unavailable},

	{"session.full", pump.ErrFull, codes.ResourceExhausted},
	{"session.closed", pump.ErrClosed, codes.Unavailable},

	{"context.canceled", context.Canceled, codes.Canceled},
	{"context.deadline", context.DeadlineExceeded, codes.DeadlineExceeded},
}

var byName = func() map[string]error {
	m := make(map[string]error, len(table))
	for _, e := range table {
		m[e.name] = e.err
	}
	return m
}()
