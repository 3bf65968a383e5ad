package openengine

import (
	"errors"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/reshard"
)

// Code is the number of an ErrorCode.
type Code int32

// The codes that hand-offs end with.
const (
	InvalidArgument  Code = 1
	RoleMismatch     Code = 3
	ModelNotFound    Code = 4
	Overloaded       Code = 5
	DuplicateRequest Code = 7
	SessionNotFound  Code = 8
	TransferFailed   Code = 9
	Cancelled        Code = 10
	Draining         Code = 11
	Internal         Code = 12
)

// codes says as which code a sentinel arrives: the first that matches.
var codes = []struct {
	code  Code
	again bool
	of    []error
}{
	{RoleMismatch, false, []error{handoff.ErrRole}},
	{ModelNotFound, false, []error{handoff.ErrModel}},
	{SessionNotFound, false, []error{handoff.ErrGone, handoff.ErrUnknown, handoff.ErrGroup}},
	{DuplicateRequest, false, []error{handoff.ErrTaken}},
	{Overloaded, true, []error{handoff.ErrCapacity, handoff.ErrNotReady}},
	{Draining, true, []error{handoff.ErrDraining}},
	{Cancelled, false, []error{handoff.ErrAborted}},
	{TransferFailed, false, []error{handoff.ErrTransfer, handoff.ErrPeer, handoff.ErrDeadline}},
	{InvalidArgument, false, []error{handoff.ErrBound, handoff.ErrVersion, handoff.ErrPlan, handoff.ErrPosition, handoff.ErrWeights,
		layout.ErrGeometry, reshard.ErrUncovered, reshard.ErrMismatch}},
}

// CodeOf is how an EngineError names err; again says that the same request may succeed later.
func CodeOf(err error) (c Code, again bool) {
	for _, k := range codes {
		for _, is := range k.of {
			if errors.Is(err, is) {
				return k.code, k.again
			}
		}
	}
	return Internal, false
}
