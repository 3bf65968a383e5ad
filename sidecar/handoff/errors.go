package handoff

import "errors"

// Sentinels: one per decision that a caller makes. They keep their identity over
// gRPC (proto/errs).
var (
	ErrGone     = errors.New("handoff: gone")              // released, expired, unknown, or a wrong key
	ErrTaken    = errors.New("handoff: already imported")  // no copy is left
	ErrModel    = errors.New("handoff: another model")     // model digests differ
	ErrPlan     = errors.New("handoff: plans differ")      // the two sides planned differently, or no plan exists
	ErrPosition = errors.New("handoff: position mismatch") // KV and per-request state, or tokens and manifest, disagree
	ErrWeights  = errors.New("handoff: weights epoch differs")
	ErrCapacity = errors.New("handoff: no capacity")
	ErrDeadline = errors.New("handoff: deadline passed")
	ErrAborted  = errors.New("handoff: aborted")
	ErrPeer     = errors.New("handoff: peer lost")
	ErrTransfer = errors.New("handoff: transfer failed")
	ErrChecksum = errors.New("handoff: checksums differ") // what arrived is not what was exported, or that cannot be told and must be
	ErrInDoubt  = errors.New("handoff: in doubt: ask Get")
	ErrNotReady = errors.New("handoff: group not ready") // no engine, or not every rank, is attached
	ErrAttached = errors.New("handoff: rank already attached")
	ErrAttach   = errors.New("handoff: attach refused")
	ErrRelaunch = errors.New("handoff: relaunch the group") // its ranks hold what cannot be one group any more
	ErrUnknown  = errors.New("handoff: unknown label or id")
	ErrEngine   = errors.New("handoff: engine broke the protocol")
	ErrRole     = errors.New("handoff: not in this role")
	ErrQuiet    = errors.New("handoff: memory may still be touched")
	ErrBound    = errors.New("handoff: over a limit") // a message from outside is larger than allowed
	ErrDraining = errors.New("handoff: group drains") // it takes no new work
	ErrGroup    = errors.New("handoff: no such group")
	ErrDenied   = errors.New("handoff: not allowed")       // the caller's certificate may not do this
	ErrVersion  = errors.New("handoff: no common version") // of a protocol
	ErrHost     = errors.New("handoff: plugin ended")      // the process between a control plane and the sidecars
	ErrSection  = errors.New("handoff: adapter refuses its configuration")
	ErrOrder    = errors.New("handoff: call out of order") // of an adapter's life
)
