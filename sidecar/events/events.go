// Package events says what happened. Nothing in Baton acts on an event, and losing
// every event loses no request. sidecar/events/nats publishes them.
package events

import (
	"context"
	"time"
)

// Kind is what happened to a hand-off or a sidecar; the last part of the subject.
type Kind string

const (
	Exported Kind = "exported"
	Opened   Kind = "opened"
	Reserved Kind = "reserved"
	Moving   Kind = "moving"
	Landed   Kind = "landed"
	Admitted Kind = "admitted"
	Dropped  Kind = "dropped"
	Differs  Kind = "differs" // what a rank read is not what Peer exported
	Released Kind = "released"
	Expired  Kind = "expired"
	Attached Kind = "attached"
	Detached Kind = "detached"
	Ready    Kind = "ready"    // the group's roster is complete
	Draining Kind = "draining" // the group takes no new work
	Serving  Kind = "serving"  // it takes work again
	Control  Kind = "control"  // By called Call
	Degraded Kind = "degraded" // the link from Peer brings far less than it should, or nothing: Cause
	Restored Kind = "restored" // it is good again
)

// Event is one line of what happened, for people and dashboards.
type Event struct {
	Time        time.Time     `json:"time"`
	Cluster     string        `json:"cluster"`
	Pool        string        `json:"pool"`
	Group       string        `json:"group"`
	Rank        int32         `json:"rank"`
	Incarnation uint64        `json:"incarnation"`
	Seq         uint64        `json:"seq"` // per incarnation, from 1: a gap shows a loss
	Kind        Kind          `json:"kind"`
	Handoff     string        `json:"handoff,omitempty"`
	Label       string        `json:"label,omitempty"`
	Peer        string        `json:"peer,omitempty"`
	Bytes       int64         `json:"bytes,omitempty"`
	Elapsed     time.Duration `json:"elapsed_ns,omitempty"`
	Cause       string        `json:"cause,omitempty"`
	By          string        `json:"by,omitempty"`    // Control: URI of the caller's certificate
	Call        string        `json:"call,omitempty"`  // Control: as docs/PROTOCOL.md names it
	Asked       string        `json:"asked,omitempty"` // Control: the action or epoch, where the call has one
}

// Publisher sends events. Publish sets Seq, never blocks, and drops and counts
// when its bound is reached.
type Publisher interface {
	Publish(e Event)
	Dropped() uint64
	Close(ctx context.Context) error
}
