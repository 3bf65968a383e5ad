package engine

import "github.com/batonkv/baton/sidecar/handoff"

// Session is a rank's connection to its sidecar; *client.Client is one. No method waits.
type Session interface {
	// Send queues a message to the sidecar.
	Send(m handoff.FromEngine) error
	// Poll appends what is ready, decisions excepted.
	Poll(dst []handoff.ToEngine) []handoff.ToEngine
	// Decisions takes the decisions up to through that were not taken yet, in order.
	Decisions(through uint64) []handoff.Decision
	// Wake receives when something may be ready.
	Wake() <-chan struct{}
	// Away is why no sidecar is attached at this instant, nil while one is.
	Away() error
	// Err is why none will be any more, nil while one may.
	Err() error
}
