package staged

import "github.com/batonkv/baton/transfer"

// SourceEvent is something that happened to a Source. The set is closed.
type SourceEvent interface{ sourceEvent() }

// DestEvent is something that happened to a Dest. The set is closed.
type DestEvent interface{ destEvent() }

// Events. A driver posts WireExit of a mover before WireUp of its successor, and
// PeerDown of a session before PeerUp of the next one. The local mover has no
// incarnation here: its exit ends its tickets one by one, by PackDone or UnpackDone.
type (
	// PeerUp says that a session to the peer stands.
	PeerUp struct{ Peer transfer.PeerID }
	// PeerDown says that it ended. The peer's movers may go on reading.
	PeerDown struct{ Peer transfer.PeerID }
	// WireUp says that this end's wire mover for the peer serves.
	WireUp struct {
		Peer transfer.PeerID
		Wire Incarnation
	}
	// WireExit says that its exit was seen: every ticket of that process has ended. A
	// mover that serves several peers exits for each.
	WireExit struct {
		Peer transfer.PeerID
		Wire Incarnation
	}
	// FromPeer is a message of the other end.
	FromPeer struct {
		Peer transfer.PeerID
		Msg  Message
	}
	// Cancel ends a job for a reason of the driver's: abort, deadline, hand-off over.
	Cancel struct{ Job Job }
	// Overdue says that the patience which Await asked for has run out.
	Overdue struct{ Ticket uint64 }

	// Granted and Refused answer AskGrant. Refused: the pin is not held, or its lease is over.
	Granted struct{ Grant uint64 }
	Refused struct{ Grant uint64 }
	// Revoked says that the lease ended under an open grant: packs under way go on,
	// EndGrant follows them.
	Revoked struct{ Grant uint64 }
	// PackDone says that a pack ticket is done: the local mover no longer touches the
	// chunk or engine memory for it.
	PackDone struct {
		Ticket uint64
		Why    Reason
	}

	// Pull starts a job; JobDone follows.
	Pull struct {
		Peer   transfer.PeerID // the source
		Job    Job
		Pin    Pin
		Chunks int32 // both ends cut the plan's bytes alike
	}
	// FetchDone says that a fetch ticket is done: neither wire mover touches the chunk for it.
	FetchDone struct {
		Ticket uint64
		Why    Reason
	}
	// UnpackDone says that an unpack ticket is done: the local mover no longer touches
	// the chunk or engine memory for it.
	UnpackDone struct {
		Ticket uint64
		Why    Reason
	}
)

func (PeerUp) sourceEvent()   {}
func (PeerDown) sourceEvent() {}
func (WireUp) sourceEvent()   {}
func (WireExit) sourceEvent() {}
func (FromPeer) sourceEvent() {}
func (Cancel) sourceEvent()   {}
func (Overdue) sourceEvent()  {}
func (Granted) sourceEvent()  {}
func (Refused) sourceEvent()  {}
func (Revoked) sourceEvent()  {}
func (PackDone) sourceEvent() {}

func (PeerUp) destEvent()     {}
func (PeerDown) destEvent()   {}
func (WireUp) destEvent()     {}
func (WireExit) destEvent()   {}
func (FromPeer) destEvent()   {}
func (Cancel) destEvent()     {}
func (Overdue) destEvent()    {}
func (Pull) destEvent()       {}
func (FetchDone) destEvent()  {}
func (UnpackDone) destEvent() {}

// Message passes between the two ends over their session, in order. Copies, delays
// and other orders cost time and never memory. The set is closed.
type Message interface{ message() }

// Messages of the reader.
type (
	// Want asks for a job's chunks.
	Want struct {
		Job    Job
		Pin    Pin
		Chunks int32
	}
	// Credit says that no fetch of the offer is open and none will begin: for the reader
	// the chunk behind it is free.
	Credit struct{ Offer uint64 }
	// Stop says that the reader gave the job up. Offers under way are credited.
	Stop struct{ Job Job }
)

// Messages of the source.
type (
	// Offer says that a packed chunk may be read from the wire mover Wire, and from no
	// other: after its exit the chunk may hold another job.
	Offer struct {
		Job   Job
		Seq   int32  // number of the chunk within the job
		Offer uint64 // never repeats within a Source
		Chunk int32  // of the source's arena
		Wire  Incarnation
	}
	// Gone ends a job at the source.
	Gone struct {
		Job Job
		Why Reason
	}
)

func (Want) message()   {}
func (Credit) message() {}
func (Stop) message()   {}
func (Offer) message()  {}
func (Gone) message()   {}

// SourceEffect is something that a Source wants done, in order. The set is closed.
type SourceEffect interface{ sourceEffect() }

// DestEffect is something that a Dest wants done, in order. The set is closed.
type DestEffect interface{ destEffect() }

type (
	// Send sends to the peer's present session.
	Send struct {
		Peer transfer.PeerID
		Msg  Message
	}
	// KillWire kills this end's wire mover for the peer, if it is still Wire; WireExit
	// follows, and WireUp of a successor if the peer is still wanted. Where none can be
	// started the driver cancels the peer's jobs: their packed chunks wait for it.
	KillWire struct {
		Peer transfer.PeerID
		Wire Incarnation
	}
	// Await asks for Overdue{Ticket} once the driver's patience has run out.
	Await struct{ Ticket uint64 }
	// Refuse counts a message that was not acted on.
	Refuse struct {
		Peer transfer.PeerID
		Msg  Message
		Why  Refusal
	}

	// AskGrant asks for leave to pack one job of a peer from a pin; Granted or Refused answers.
	AskGrant struct {
		Grant uint64
		Peer  transfer.PeerID
		Job   Job
		Pin   Pin
	}
	// EndGrant gives it back: no pack under it is open.
	EndGrant struct{ Grant uint64 }
	// Pack copies chunk Stamp.Seq of the job into the arena, between the stamps; PackDone follows.
	Pack struct {
		Ticket uint64
		Chunk  int32
		Stamp  Stamp
	}
	// Served says that a job is over at the source.
	Served struct {
		Job Job
		Why Reason
	}

	// Fetch reads the source's chunk From into Chunk by the wire mover Wire, from the wire
	// mover Of; it fails when either is another process. FetchDone follows.
	Fetch struct {
		Peer   transfer.PeerID
		Ticket uint64
		Stamp  Stamp // of the bytes that were offered
		From   int32 // of the source's arena
		Of     Incarnation
		Chunk  int32
		Wire   Incarnation
	}
	// CancelFetch asks a fetch to stop; FetchDone still follows.
	CancelFetch struct{ Ticket uint64 }
	// Unpack compares both stamps and copies the chunk to engine memory only when they
	// match, else ends with BadStamp; UnpackDone follows.
	Unpack struct {
		Ticket uint64
		Chunk  int32
		Stamp  Stamp
	}
	// CancelUnpack asks an unpack to stop; UnpackDone still follows.
	CancelUnpack struct{ Ticket uint64 }
	// JobDone ends a pull: no unpack of it is open, and none will begin. Chunks of it
	// may still be held.
	JobDone struct {
		Job Job
		Why Reason
	}
)

// Refusal says why a message was not acted on.
type Refusal uint8

const (
	Unmatched Refusal = iota + 1 // about nothing that is open
	Repeated                     // said before
	Malformed                    // contradicts itself or the job
	TooMany                      // over a bound
)

func (Send) sourceEffect()     {}
func (KillWire) sourceEffect() {}
func (Await) sourceEffect()    {}
func (Refuse) sourceEffect()   {}
func (AskGrant) sourceEffect() {}
func (EndGrant) sourceEffect() {}
func (Pack) sourceEffect()     {}
func (Served) sourceEffect()   {}

func (Send) destEffect()         {}
func (KillWire) destEffect()     {}
func (Await) destEffect()        {}
func (Refuse) destEffect()       {}
func (Fetch) destEffect()        {}
func (CancelFetch) destEffect()  {}
func (Unpack) destEffect()       {}
func (CancelUnpack) destEffect() {}
func (JobDone) destEffect()      {}
