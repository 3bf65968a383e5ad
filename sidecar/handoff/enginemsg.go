package handoff

import (
	"time"

	"github.com/batonkv/baton/transfer/layout"
)

// FromEngine is a one-way message of an engine rank to its sidecar.
type FromEngine interface{ fromEngine() }

// ToEngine is a one-way message of a sidecar to its engine rank.
type ToEngine interface{ toEngine() }

// Scheduler says who decides for a rank.
type Scheduler uint8

const (
	SchedulerRank  Scheduler = iota + 1 // every rank mirrors the decisions (Megatron)
	SchedulerGroup                      // one scheduler decides for all ranks (vLLM)
)

// OnDown says what becomes of rank 0's requests whose import is open while no sidecar is
// there. Their memory is the group's matter, and stays held, either way.
type OnDown uint8

const (
	OnDownFail      OnDown = iota + 1 // they wait for the next leader's word until their deadline, and then fail
	OnDownRecompute                   // they fail when the session is lost: the engine computes them itself
)

// WeightsPolicy says what a change of the weights epoch does to KV that older weights made.
type WeightsPolicy uint8

const (
	WeightsRefuse WeightsPolicy = iota + 1 // it is not handed off, and block hashes are salted with the epoch; also what 0 means
	WeightsAllow                           // it stays good: RL that keeps KV across refits
)

// ModelIdentity is what both groups of a hand-off must share, and the weights epoch
// that Open compares.
type ModelIdentity struct {
	Name         string
	WeightsEpoch uint64
	Layout       layout.Model
}

// Capacity is what an engine rank can hold.
type Capacity struct {
	Blocks      int32 // usable blocks of the paged pool
	Slots       int32 // usable request slots; 0: the model has no per-request state
	BlockTokens int32 // tokens per block, and the block size of its hash chain
}

// Attach describes one engine rank, once per session.
type Attach struct {
	Group     string
	Instance  Instance
	Rank      layout.Rank
	Ranks     int32 // size of the group
	Model     ModelIdentity
	Shards    []layout.Shard // of this rank
	Buffers   []BufferDecl
	Capacity  Capacity
	Scheduler Scheduler
	OnDown    OnDown
	Weights   WeightsPolicy
	// What the engine kept of an earlier session of this launch; all empty at the first.
	Pins      []string   // labels of exports that were neither freed nor refused
	Imports   []string   // rank 0: labels of imports without Imported or Failed
	Applied   uint64     // decisions 1 to Applied were applied,
	Held      uint64     // and 1 to Held are held by its client
	Decisions []Decision // the held ones after the newest Settled among them, in order, applied or not
	Draining  bool       // the newest of those applied that is about intake stopped it
	// Parts: it takes a Reserve before its hand-off is exported whole, and the resume packet
	// with Admit.
	Parts bool
	// TellsBlocks, by rank 0: it tells what its prefix cache holds when it is asked to.
	TellsBlocks bool
}

// BuffersReady says that every declared buffer's descriptor was sent.
type BuffersReady struct{}

// Announce says that label will be exported: an Open before that is Pending.
type Announce struct{ Label string }

// Export pins a finished prompt's state: the engine keeps Blocks and Slot untouched
// until Unpin. The leader's Export carries Resume; other ranks leave it empty.
type Export struct {
	Label    string
	Blocks   []int32 // block table from token 0
	Slot     int32   // -1: none
	Tokens   int32   // prompt tokens whose KV is held
	Position int32   // position of the per-request state
	Resume   Resume
	Copies   int32         // how many imports may consume it; 0 means 1
	MaxHold  time.Duration // how long it is held for importers, at most the sidecar's max-hold; 0: its lease
	// WeightsEpoch is the engine's at the request's first token.
	WeightsEpoch uint64
	Salt         Salt
	// Fence: the memory may be read once Fenced says so; 0: at once.
	Fence uint64
	// Parts is how many ExportParts of the label it closes; 0: it is exported whole.
	Parts uint32
}

// ExportPart pins what is computed of a prompt while the rest is. Every rank says the same
// parts in the same order; Export closes them, ReleaseExport gives them up. One that
// continues what has ended meanwhile is not answered: the end is.
type ExportPart struct {
	Label    string
	Part     uint32  // from 1
	Blocks   []int32 // behind those that earlier parts named
	Tokens   int32   // of the whole prompt
	Position int32   // of the per-request state when Export comes
	Reach    Reach   // what is computed; it grows
	// The same in every part.
	WeightsEpoch uint64 // of the engine at the request's first token
	Salt         Salt
	// Fence: what this part adds may be read once Fenced says so; 0: at once.
	Fence uint64
}

// Fenced says that the engine's steps behind fences 1 to N have ended: what was handed
// out under them is written by nobody any more. Fences rise.
type Fenced struct{ N uint64 }

// Import asks to bring a hand-off in; rank 0 only. Label is the decode engine's request id.
type Import struct {
	Label    string
	Manifest Manifest
	Tokens   []int32 // the prompt
	Deadline time.Duration
}

// Held says that the engine client holds decisions 1 to N.
type Held struct{ N uint64 }

// Applied says that the engine applied decisions 1 to N.
type Applied struct{ N uint64 }

// Reserved answers decision N (Reserve) once it was applied. Digest is of Blocks and
// Slot of the mirrored allocator: unequal digests in a group are an engine failure.
type Reserved struct {
	N      uint64
	Full   bool    // no capacity: nothing is held, the leader asks again after Freed
	Why    string  // set when it can never work
	Blocks []int32 // block table from token 0; cached blocks included
	Cached int32   // leading tokens that need no pull, a multiple of the block size
	Slot   int32   // -1: none
	Digest Digest
	// Fence: a step of the memory's previous owner may write it until Fenced says so; 0: none.
	Fence uint64
}

// LifecycleAck answers decision N (Lifecycle) once it was applied and its action is carried
// out or, what takes longer, begun. Err: the engine refuses; its sentinel survives the wire.
// The same action twice in a row is no failure.
type LifecycleAck struct {
	N   uint64
	Err error
}

// Freed says that blocks or slots came back: a waiting import may fit.
type Freed struct{ Blocks, Slots int32 }

// AbortImport asks to end an import by the engine's own label; Imported or Failed follows.
type AbortImport struct{ Label string }

// ReleaseExport gives up an exported hand-off that nobody will import.
type ReleaseExport struct{ Label string }

// Attached answers Attach: descriptors go to the fd socket under FDKey.
type Attached struct {
	Incarnation Incarnation
	FDKey       uint64
}

// MoverStarted says that a mover with this pid maps the engine's buffers; its exit
// alone proves them quiet once the sidecar is gone.
type MoverStarted struct{ PID int32 }

// Exported hands the leader's engine the manifest of label. With More its first part is
// pinned by all ranks, and another Exported follows the last.
type Exported struct {
	Label    string
	Manifest Manifest
	More     bool
}

// DecisionKind is what a leader decides.
type DecisionKind uint8

const (
	Reserve           DecisionKind = iota + 1 // take blocks and a slot, all or nothing; answered by Reserved
	Admit                                     // the request is the engine's: register hashes, decode
	Drop                                      // the import failed: forget its hashes; its blocks stay out of use
	ReleaseQuarantine                         // a dropped import's blocks and slot are quiet on every rank: return them
	Free                                      // an exported label is over: return its blocks and slot
	SetWeightsEpoch                           // from here on the weights are those of WeightsEpoch
	Lifecycle                                 // carry out Action; answered by LifecycleAck
)

var decisionNames = [...]string{Reserve: "reserve", Admit: "admit", Drop: "drop",
	ReleaseQuarantine: "release-quarantine", Free: "free", SetWeightsEpoch: "set-weights-epoch", Lifecycle: "lifecycle"}

func (k DecisionKind) String() string {
	if int(k) < len(decisionNames) && k > 0 {
		return decisionNames[k]
	}
	return "decision(?)"
}

// Decision is the leader's numbered word. Every rank applies decisions in order, so
// that mirrored allocators stay mirrored; Free travels here for that reason.
type Decision struct {
	N       uint64
	Kind    DecisionKind
	ID      ID
	Attempt Attempt
	Label   string // Reserve: the importer's request id; Free: the exported label
	// Reserve only:
	Tokens   int32    // prompt tokens
	Hashes   []uint64 // block-hash chain of the complete blocks, by the group's block size
	Position int32
	Resume   Resume // also of Admit, when Reserve had More
	Extent          // of Sources. Engines see More alone: Resume comes with Admit
	// Sources are the pins that the rank may read. Only sidecars see them.
	Plan    Digest
	Source  Digest // geometry digest of the source group
	Members []Member
	Sources []PinInfo
	// Of is the number of the Reserve that Admit, Drop or ReleaseQuarantine is about; else 0.
	Of uint64
	// WeightsEpoch is the group's: from SetWeightsEpoch on the new one.
	WeightsEpoch uint64
	// Settled: every rank applied decisions 1 to Settled, so nobody need keep them.
	Settled uint64
	// Action of Lifecycle; else 0.
	Action Action
}

// Draining is whether a group takes no new work after d, when it did so or not before.
func (d Decision) Draining(before bool) bool {
	switch d.Action {
	case ActionStopIntake:
		return true
	case ActionResumeIntake:
		return false
	}
	return before
}

// Through tells rank 0's engine that every rank holds decisions 1 to N: it broadcasts
// N in its own step, and all ranks apply through N in that step.
type Through struct{ N uint64 }

// UnpinExport returns an exported label's blocks and slot to an engine rank outside the
// group's order: its own deadline passed and no leader is heard. A rank whose group
// lives gets Free instead.
type UnpinExport struct {
	Label string
	ID    ID
}

// Imported tells rank 0's engine and the caller that the hand-off was admitted.
type Imported struct {
	Label  string
	ID     ID
	Bytes  int64 // moved, all ranks
	Cached int32 // tokens found in the decode cache
	Phases Phases
}

// Phases is where the time of one import went, on the importing leader's clock.
type Phases struct {
	Open    time.Duration // Import to Opened
	Reserve time.Duration // to the last rank's Reserved
	Move    time.Duration // slowest rank, first pull to last ticket done
	Check   time.Duration // from the last Reserved to the last Landed, less Move
	Done    time.Duration // to the source's answer
	Admit   time.Duration // to Applied on every rank
}

// Failed tells why a request of the engine failed. SourceSafe: the source is still
// held, the import may be tried elsewhere; or it was the announcement that failed, and an
// export of the label that follows is answered by itself. An export that failed with ErrGone met a Free
// of its label: that decision gives the memory back, this word does not.
type Failed struct {
	Label      string
	Err        error // its sentinel survives the wire, see proto/errs
	SourceSafe bool
}

func (Attach) fromEngine()        {}
func (BuffersReady) fromEngine()  {}
func (Announce) fromEngine()      {}
func (Export) fromEngine()        {}
func (ExportPart) fromEngine()    {}
func (Import) fromEngine()        {}
func (Held) fromEngine()          {}
func (Applied) fromEngine()       {}
func (Reserved) fromEngine()      {}
func (Freed) fromEngine()         {}
func (Fenced) fromEngine()        {}
func (AbortImport) fromEngine()   {}
func (ReleaseExport) fromEngine() {}
func (LifecycleAck) fromEngine()  {}

func (Attached) toEngine()     {}
func (MoverStarted) toEngine() {}
func (Exported) toEngine()     {}
func (Decision) toEngine()     {}
func (Through) toEngine()      {}
func (UnpinExport) toEngine()  {}
func (Imported) toEngine()     {}
func (Failed) toEngine()       {}
