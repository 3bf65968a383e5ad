// Package handoff holds the halves of one hand-off as pure state machines and the
// messages that they exchange: between an engine and its sidecar, between sidecars,
// and inside a group. It does no I/O, keeps no clock and starts no goroutine;
// package machine composes the halves into one sidecar.
//
// Memory rule: a destination is freed only when its own tickets are done; a source
// is unpinned by its leader's word or its own deadline, and whoever read it asks
// Check afterwards. No timeout, abort or lost peer frees a destination.
package handoff

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/batonkv/baton/transfer/layout"
)

// Instance is a group_instance: random, one per engine launch, equal on all its ranks.
type Instance uint64

// Incarnation is the random number of one sidecar process.
type Incarnation uint64

// Member is one sidecar process of a group.
type Member struct {
	Group       string
	Rank        layout.Rank
	Incarnation Incarnation
}

// Name is the rank without its process: "group/rank".
func (m Member) Name() string { return fmt.Sprintf("%s/%d", m.Group, m.Rank) }

func (m Member) String() string {
	b := append(make([]byte, 0, 64), m.Group...)
	b = strconv.AppendInt(append(b, '/'), int64(m.Rank), 10)
	return string(strconv.AppendUint(append(b, '@'), uint64(m.Incarnation), 16))
}

// ID names one hand-off. The source leader mints it; N counts within the leader's
// incarnation, so no two hand-offs ever share an ID.
type ID struct {
	Group    string
	Instance Instance
	Leader   Incarnation
	N        uint64
}

func (id ID) String() string {
	b := append(make([]byte, 0, 64), id.Group...)
	b = strconv.AppendUint(append(b, '@'), uint64(id.Leader), 16)
	return string(strconv.AppendUint(append(b, '.'), id.N, 10))
}

// Bytes is the form that jobs and stamps carry: the leader's incarnation and N.
func (id ID) Bytes() (b [16]byte) {
	binary.BigEndian.PutUint64(b[:8], uint64(id.Leader))
	binary.BigEndian.PutUint64(b[8:], id.N)
	return b
}

// Importer is a group that imports; attempts never repeat within it.
type Importer struct {
	Group    string
	Instance Instance
	Leader   Incarnation
}

// Attempt numbers the tries of an importer over all its hand-offs. It starts from the
// leader's incarnation, so that an answer to a leader is not taken by its successor.
type Attempt uint64

// PinID names a pin of one rank. It is random and not 0: only whom the leader let read
// knows it. Generation counts how often
// its memory was reused, so that a stale pin is told from a new one.
type (
	PinID      uint64
	Generation uint64
)

// Key is the 128-bit secret of a manifest: who shows it may import.
type Key [16]byte

// Digest is a SHA-256 sum: of a model, of a group's geometry, of a plan.
type Digest [32]byte

func (d Digest) String() string { return fmt.Sprintf("%x", d[:6]) }

// Salt is what tells two prompts of equal tokens apart in a prefix cache. The zero
// Salt is a plain prompt.
type Salt struct {
	LoRA      string // adapter that the request runs with
	Namespace string // cache namespace: a tenant, a user
	Media     Digest // of the images and sounds within the prompt
}

// Resume is everything that decode needs to go on exactly.
type Resume struct {
	Tokens   []int32   // sampled token, then MTP proposals
	Logprobs []float32 // of Tokens, from the first on: proposals may have none
	Sampler  []byte    // the engine's own sampler state, opaque
	Finished bool      // the request ended at prefill (EOS, limit, stop word)
}

// Manifest is what an importer needs to know of a hand-off. The manifest of an
// announced label has Tokens 0 and no Resume yet. It holds no address,
// block table or slot, so it may pass through clients.
type Manifest struct {
	ID           ID
	Key          Key
	Label        string // the prefill engine's request id
	Model        Digest // of the model's identity: name and states
	Geometry     Digest // of the source group's shards
	Tokens       int32  // prompt tokens whose state is held
	Position     int32  // where decode resumes: Tokens, or Tokens-1 for engines that recompute the last
	WeightsEpoch uint64
	BlockTokens  int32 // tokens per block of the source's hash chain
	Resume       Resume
}
