package loop

import (
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
)

// What the loop needs of its doors and of their sessions: *engine.Server, *peer.Server,
// *fd.Server, *engine.Session and *peer.Session are these.

type engineDoor interface {
	ExpectFDs(key uint64, buffers []handoff.BufferDecl)
	TakeFDs(key uint64) map[uint32][]int // by buffer; the caller's
	RefusedFDs() uint64
}

type peerDoor interface {
	Addr() string
	Dial(addr string, want handoff.Member) // Up or Down follows
	Counts() map[string]uint64
}

type fdDoor interface {
	Offer(key uint64, fds []int, owner string) error // the descriptors stay the caller's
	Revoke(owner string) int
}

// engineSession sends without waiting; Closed follows Close.
type engineSession interface {
	Send(handoff.ToEngine) error
	Close(error) error
}

// peerSession sends without waiting; Down follows Close.
type peerSession interface {
	Peer() handoff.Member
	Identity() string
	Dialed() bool
	End() choice.End // what the peer says of itself
	Send(handoff.PeerMessage) error
	Close(error)
}
