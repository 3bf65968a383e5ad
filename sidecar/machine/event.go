package machine

import (
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/sums"
)

// Session numbers an engine session of this process; the driver mints it.
type Session uint64

// Call numbers a control call that waits for its answer; the driver mints it.
type Call uint64

// Event is something that happened. The set is closed.
type Event interface{ event() }

type (
	// FromEngine is a message of an engine session; Attach is its first.
	FromEngine struct {
		Session Session
		Msg     handoff.FromEngine
	}
	// EngineDown says that a session ended.
	EngineDown struct{ Session Session }
	// Mapped answers MapBuffers: the mover reaches the engine's buffers, or why not.
	Mapped struct {
		Session Session
		PID     int32 // of the mover
		Err     error
	}
	// PeerUp says that a session to another sidecar stands; its Hello and certificate agree.
	PeerUp struct{ Peer handoff.Member }
	// PeerDown says that it ended, or could not be made.
	PeerDown struct {
		Peer handoff.Member
		Err  error
	}
	// FromPeer is a message of another sidecar, or of this one to itself.
	FromPeer struct {
		Peer handoff.Member
		Msg  handoff.PeerMessage
	}
	// Found is the newest view of discovery.
	Found struct{ Records []discovery.Record }
	// Meet wants a session to a peer that discovery shows; PeerUp or PeerDown follows.
	Meet struct{ Peer handoff.Member }
	// Linked answers OpenLink.
	Linked struct {
		Peer handoff.Member
		Err  error
	}
	// LinksLost says that the mover died: every link is gone; its tickets end one by one.
	LinksLost struct{}
	// PullDone says that a ticket is done: nothing touches its memory any more.
	PullDone struct {
		Ticket uint64
		Bytes  int64
		Err    error
	}
	// Summed answers Sum: nothing reads for it any more.
	Summed struct {
		Ticket uint64
		Sums   []uint64
		Err    error
	}
	// AskGrant asks for leave to pack for a staged pull of Peer; Granted or GrantRefused
	// answers. The driver mints Grant.
	AskGrant struct {
		Grant  uint64
		Peer   handoff.Member
		Packer staged.Packer // whose exit would end the packs
		Of     handoff.Check // what Peer will ask when it has read
	}
	// GrantEnded gives it back: no pack under it is open.
	GrantEnded struct{ Grant uint64 }
	// PackerExited says that a mover was seen to exit: its packs have ended, no other's. Its
	// grants are over: Revoked follows for those that were not yet. It comes before its
	// successor packs.
	PackerExited struct{ Packer staged.Packer }
	// Import, Abort, Release, SetWeightsEpoch, Reset, Lifecycle and Drain are control calls;
	// Reply answers each.
	Import struct {
		Call   Call
		Import handoff.Import
	}
	// Abort ends an import; with a Key that of this key alone.
	Abort struct {
		Call Call
		ID   handoff.ID
		Key  handoff.Key
	}
	Release struct {
		Call Call
		ID   handoff.ID
		Key  handoff.Key
	}
	SetWeightsEpoch struct {
		Call  Call
		Epoch uint64
	}
	Reset     struct{ Call Call }
	Lifecycle struct {
		Call   Call
		Action handoff.Action
	}
	Drain struct {
		Call   Call
		Resume bool
	}
	// Tick says that the instant of Next has come.
	Tick struct{}
)

func (FromEngine) event()      {}
func (EngineDown) event()      {}
func (Mapped) event()          {}
func (PeerUp) event()          {}
func (PeerDown) event()        {}
func (FromPeer) event()        {}
func (Found) event()           {}
func (Meet) event()            {}
func (Linked) event()          {}
func (LinksLost) event()       {}
func (PullDone) event()        {}
func (Summed) event()          {}
func (AskGrant) event()        {}
func (GrantEnded) event()      {}
func (PackerExited) event()    {}
func (Import) event()          {}
func (Abort) event()           {}
func (Release) event()         {}
func (SetWeightsEpoch) event() {}
func (Reset) event()           {}
func (Lifecycle) event()       {}
func (Drain) event()           {}
func (Tick) event()            {}

// Effect is something to do, in order. The set is closed.
type Effect interface{ effect() }

type (
	// ToEngine sends to an engine session.
	ToEngine struct {
		Session Session
		Msg     handoff.ToEngine
	}
	// CloseEngine ends an engine session with the reason.
	CloseEngine struct {
		Session Session
		Err     error
	}
	// ExpectBuffers opens the fd socket for the buffers' descriptors under key.
	ExpectBuffers struct {
		Session Session
		Key     uint64
		Buffers []handoff.BufferDecl
	}
	// MapBuffers hands the descriptors that came under Key to the mover; Mapped answers.
	MapBuffers struct {
		Session Session
		Key     uint64
		Buffers []handoff.BufferDecl
	}
	// UnmapBuffers takes a session's buffers from the mover: no ticket of it is open, no pack
	// and no sum.
	UnmapBuffers struct{ Session Session }
	// ToPeer sends to another sidecar; to this one, the driver feeds it back as FromPeer.
	ToPeer struct {
		Peer handoff.Member
		Msg  handoff.PeerMessage
	}
	// Dial asks for a session to a sidecar that discovery knows; PeerUp or PeerDown follows.
	Dial struct {
		Peer handoff.Member
		Addr string
	}
	// ClosePeer ends a session; PeerDown follows.
	ClosePeer struct{ Peer handoff.Member }
	// ShareBuffers answers WantBuffers of Peer with one-time keys for the session's buffers.
	ShareBuffers struct {
		Peer    handoff.Member
		Session Session
	}
	// OpenLink maps a peer's buffers for reading; Linked answers.
	OpenLink struct {
		Peer    handoff.Member
		Buffers handoff.Buffers
	}
	// CloseLink unmaps them; no ticket over the link is open.
	CloseLink struct{ Peer handoff.Member }
	// Pull submits a job; PullDone follows, also when submitting fails.
	Pull struct {
		Ticket   uint64
		Peer     handoff.Member
		Template *lower.Template
		Job      lower.Job
		Of       handoff.Check // what Peer is asked afterwards; a staged pull names it before
		Plan     *reshard.Plan // that Template is of
		Piece    handoff.Piece // of the hand-off that Template and Job are for
		Part     uint32        // counts the pulls of the pair, from 0
	}
	// Sum adds up what lies in the engine's buffers; Summed follows. It reads alone, so a mover
	// that died may be followed by the next.
	Sum struct {
		Ticket uint64
		Job    sums.Job
	}
	// Unsummed tells that an export goes without sums, and why.
	Unsummed struct {
		Label string
		Err   error
	}
	// Compared tells of the sums of what one read brought. The rest is set when some differ.
	Compared struct {
		handoff.Compared
		ID    handoff.ID
		Label string
		Peer  handoff.Member
	}
	// CancelPull asks a ticket to stop; PullDone still follows.
	CancelPull struct{ Ticket uint64 }
	// KillMover ends a process that copies, or packs: what was asked to stop has not. Of the
	// local mover PullDone of each ticket and LinksLost follow the exit, of a wire mover
	// PackerExited.
	KillMover struct{ Packer staged.Packer }
	// Granted and GrantRefused answer AskGrant. Pin and Reach say what may be packed.
	Granted struct {
		Grant uint64
		Pin   handoff.PinInfo
		Reach handoff.Reach
	}
	GrantRefused struct{ Grant uint64 }
	// Revoked says that the pin of an open grant is over, or that its mover has exited: packs
	// under way end or are ended, no other begins, and GrantEnded follows. The driver hands it
	// to what packs before anything else: the memory is given back from here on.
	Revoked struct{ Grant uint64 }
	// Reply answers a control call.
	Reply struct {
		Call     Call
		Imported handoff.Imported
		Drained  Drained
		Err      error
	}
	// Notify tells watchers of the control service.
	Notify struct{ Notice Notice }
	// Publish tells everybody; the driver adds the time, the publisher the sequence.
	Publish struct{ Event events.Event }
	// Advertise changes what discovery says of this sidecar; capacity is the engine's, free or not.
	Advertise struct {
		Instance       handoff.Instance
		Ranks          int32
		Geometry       string
		CapacityBlocks int32
		CapacitySlots  int32
		Draining       bool
	}
	// Refuse counts a message that was not acted on, and why.
	Refuse struct {
		Peer handoff.Member
		What string // type of the message
		Why  Why
	}
)

func (ToEngine) effect()      {}
func (CloseEngine) effect()   {}
func (ExpectBuffers) effect() {}
func (MapBuffers) effect()    {}
func (UnmapBuffers) effect()  {}
func (ToPeer) effect()        {}
func (Dial) effect()          {}
func (ClosePeer) effect()     {}
func (ShareBuffers) effect()  {}
func (OpenLink) effect()      {}
func (CloseLink) effect()     {}
func (Pull) effect()          {}
func (Sum) effect()           {}
func (Unsummed) effect()      {}
func (Compared) effect()      {}
func (CancelPull) effect()    {}
func (KillMover) effect()     {}
func (Granted) effect()       {}
func (GrantRefused) effect()  {}
func (Revoked) effect()       {}
func (Reply) effect()         {}
func (Notify) effect()        {}
func (Publish) effect()       {}
func (Advertise) effect()     {}
func (Refuse) effect()        {}

// NoticeKind is what a control plane hears of.
type NoticeKind uint8

const (
	NoticeReady NoticeKind = iota + 1 // the roster is complete
	NoticeLost                        // a rank left: the group takes nothing
	NoticeAnnounced
	NoticeExported
	NoticeImported
	NoticeFailed
	NoticeReleased
	NoticeDraining // the group takes no new work
	NoticeServing  // it takes work again
)

// Notice is one line of a Watch.
type Notice struct {
	Kind     NoticeKind
	Label    string
	Manifest *handoff.Manifest // Announced, Exported
	Imported handoff.Imported  // Imported
	Err      error             // Failed
	ID       handoff.ID
	// SourceSafe: Failed, and the source is still held for another try.
	SourceSafe bool
}

// Now is an instant of the driver's monotonic clock.
type Now = time.Duration

// Why says why a message was not acted on.
type Why string

const (
	NotLeader Why = "this rank does not lead its group"
	NotMember Why = "not from the leader, or not of the roster"
	NotReady  Why = "not every rank of the group is here"
	Importer  Why = "the importer is not the sender, or of another launch of its group"
	Key       Why = "the key is not the hand-off's"
	Unmatched Why = "answers no open question"
	Malformed Why = "contradicts itself or this group"
	TooMany   Why = "too many wait"
	NotHeld   Why = "no pin that is held here is named"
	Weights   Why = "of other weights than the group's"
	Launch    Why = "its engine attached under another instance than rank 0's: all ranks of a launch state one number"
)
