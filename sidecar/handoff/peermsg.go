package handoff

import (
	"time"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/sums"
)

// PeerMessage is a one-way message between two sidecars. A session is ordered;
// its Hello fixes both incarnations, and a message from another incarnation is
// dropped and counted.
type PeerMessage interface{ peerMessage() }

// Status answers Open and Done.
type Status uint8

const (
	OK      Status = iota + 1
	Pending        // announced, not exported yet: answered again at Export
	Taken          // no copy is left for this importer
	Gone           // unknown, released, expired, or the key does not match
	Refused        // can never work: another model, another plan, a bad position; Why says it
)

var statusNames = [...]string{OK: "ok", Pending: "pending", Taken: "taken", Gone: "gone", Refused: "refused"}

func (s Status) String() string {
	if int(s) < len(statusNames) && s > 0 {
		return statusNames[s]
	}
	return "status(?)"
}

// Inside a group: a rank's sidecar and its leader.

// Join is a rank's statement to its leader, on every connect.
type Join struct {
	// Attach is what its engine attached, without buffers and imports. Its past is what the
	// rank has: labels that it pins, decisions as far as they were passed on.
	Attach  Attach
	Applied uint64 // decisions that its engine applied
	Held    uint64 // decisions that its engine's client is known to hold
}

// Roster is the leader's word that every rank is attached.
type Roster struct {
	Instance Instance
	Members  []Member // by rank
	Geometry Geometry // of the whole group
}

// Geometry is a whole group's model and shards. Digest is of Model and Shards;
// who receives one computes it anew.
type Geometry struct {
	Group    string
	Instance Instance
	Model    layout.Model
	Shards   []layout.Shard
	Members  []Member // the sidecars that hold them, by rank
}

// Pinned tells the leader that a rank's engine exported label and the memory is pinned;
// with pin 0, that the export was refused and nothing is. Each part is told: its blocks are
// those behind the ones told before, its slot is -1 until the last.
type Pinned struct {
	Label        string
	Pin          PinInfo
	WeightsEpoch uint64 // of the weights that made the state
	Extent
}

// PinInfo is one rank's part of a held hand-off.
type PinInfo struct {
	Rank       layout.Rank
	Pin        PinID
	Generation Generation
	Blocks     []int32 // block table from token 0
	Slot       int32   // -1: no per-request state
	Tokens     int32   // tokens whose KV is held
	Position   int32   // position of the per-request state
	// Sums are of its bytes as the rank's mover found them at Export; zero: none were made.
	Sums sums.Sums
}

// Leased gives a rank's pin its hand-off and its own deadline, counted from arrival.
type Leased struct {
	ID    ID
	Label string
	Pin   PinID
	Hold  time.Duration
}

// Extend asks a rank to hold a pin longer, counted from arrival. The leader's own lease
// moves once every rank answered extension N.
type Extend struct {
	ID   ID
	Pin  PinID
	N    uint64
	Hold time.Duration
}

// Extended answers Extend N: the pin is held, and for that long.
type Extended struct {
	ID  ID
	Pin PinID
	N   uint64
}

// Unpin frees a rank's pin that its leader holds no lease for. A lease that ends in
// the ordinary way is the decision Free.
type Unpin struct {
	ID  ID
	Pin PinID
}

// Landed tells the leader that a rank's pulls for reserve decision N have settled
// and were checked, or why not. Quiet says that no ticket of the rank is open.
type Landed struct {
	ID      ID
	Attempt Attempt
	N       uint64
	OK      bool
	Quiet   bool
	Why     string
	Differs bool // why it failed: the bytes are not those that the source summed up
	Bytes   int64
	Elapsed time.Duration // first pull submitted to last ticket done
}

// RankHeld and RankApplied pass an engine's Held and Applied to the leader.
type (
	RankHeld    struct{ N uint64 }
	RankApplied struct{ N uint64 }
)

// RankReserved passes an engine's Reserved to the leader.
type RankReserved struct{ Reserved Reserved }

// RankAcked passes an engine's LifecycleAck to the leader.
type RankAcked struct{ Ack LifecycleAck }

// Between groups.

// WantGeometry asks a leader for its group's Geometry, which answers it.
type WantGeometry struct{}

// WantBuffers asks a rank for what reaches its engine's buffers; Buffers answers. Who
// names a held pin was given it by the rank's leader, against a manifest's key.
type WantBuffers struct{ Pin PinID }

// Buffers says how a peer on the same host reaches memory: each Key is good
// once, at the FD socket of the sender. Why is set instead when it cannot.
type Buffers struct {
	Host   string // host id of the sender: descriptors do not cross hosts
	Socket string // path of host.fd.sock
	Cards  []BufferCard
	Chunk  int64 // bytes of the sender's staging chunks; 0: 1 MiB
	Why    string
}

// Open asks the source leader for a hand-off. It claims nothing.
type Open struct {
	ID       ID
	Key      Key
	Importer Importer
	Attempt  Attempt
	Plan     Digest
	Parts    bool // the importer reads what is not exported whole
}

// Opened answers Open. With More, Part follows for each later part, or Opened anew when the
// hand-off has ended: Gone.
type Opened struct {
	ID           ID
	Attempt      Attempt
	Status       Status
	Why          string
	Plan         Digest
	Members      []Member  // the source roster, by rank
	Pins         []PinInfo // by rank
	Tokens       int32
	Position     int32
	Resume       Resume // the truth: what a manifest says passed through clients
	WeightsEpoch uint64 // of the weights that made the state
	Salt         Salt
	Extent
}

// Part tells an importing leader, and that its ranks, what may be read since the part
// before. Blocks of Pins are those behind the ones named before, slots are -1 until the last.
type Part struct {
	ID      ID
	Attempt Attempt
	Reserve uint64 // the Reserve decision, to a rank; between leaders 0
	Pins    []PinInfo
	Extent
	Resume Resume // of the last part, between leaders
}

// Check asks a source rank whether a pin that was read is still held.
type Check struct {
	ID         ID
	Attempt    Attempt
	Pin        PinID
	Generation Generation
}

// Checked answers Check.
type Checked struct {
	Check Check
	Held  bool
}

// Done consumes one copy of a hand-off for (Importer, Attempt).
type Done struct {
	ID       ID
	Importer Importer
	Attempt  Attempt
}

// DoneAck answers Done: OK, Taken or Gone. The same (importer, attempt) always
// gets the same answer from one leader incarnation.
type DoneAck struct {
	ID      ID
	Attempt Attempt
	Status  Status
}

// Withdraw says that an attempt failed or was given up: the source may serve another.
type Withdraw struct {
	ID       ID
	Importer Importer
	Attempt  Attempt
}

func (Join) peerMessage()         {}
func (Roster) peerMessage()       {}
func (Geometry) peerMessage()     {}
func (Pinned) peerMessage()       {}
func (Leased) peerMessage()       {}
func (Extend) peerMessage()       {}
func (Extended) peerMessage()     {}
func (Unpin) peerMessage()        {}
func (Landed) peerMessage()       {}
func (RankHeld) peerMessage()     {}
func (RankApplied) peerMessage()  {}
func (RankReserved) peerMessage() {}
func (RankAcked) peerMessage()    {}
func (Decision) peerMessage()     {}
func (WantGeometry) peerMessage() {}
func (WantBuffers) peerMessage()  {}
func (Buffers) peerMessage()      {}
func (Open) peerMessage()         {}
func (Opened) peerMessage()       {}
func (Part) peerMessage()         {}
func (Check) peerMessage()        {}
func (Checked) peerMessage()      {}
func (Done) peerMessage()         {}
func (DoneAck) peerMessage()      {}
func (Withdraw) peerMessage()     {}
