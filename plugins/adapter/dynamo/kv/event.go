package kv

import (
	"encoding/json"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// RouterEvent is one change of a worker's cache as routers hear it.
type RouterEvent struct {
	Worker uint64     `json:"worker_id"`
	Tier   string     `json:"storage_tier"`
	Domain string     `json:"residency_domain,omitempty"` // before 1.6 there is none
	Event  CacheEvent `json:"event"`
}

// What RouterEvent says of blocks in GPU memory.
const (
	Device   = "device"
	ByWorker = "worker"
)

// CacheEvent is a change with its number. Those of one source are contiguous: a router that
// misses one asks for it.
type CacheEvent struct {
	ID   uint64 `json:"event_id"`
	Data Data   `json:"data"`
	Rank uint32 `json:"dp_rank"`
}

// Data is Stored, Removed, or, when both are nil, that the cache was cleared.
type Data struct {
	Stored  *StoredData
	Removed *RemovedData
}

// StoredData are blocks that follow each other.
type StoredData struct {
	Parent *uint64     `json:"parent_hash"` // nil: the first block begins a sequence
	Start  *uint32     `json:"start_position"`
	Blocks []BlockData `json:"blocks"`
}

// BlockData is one block. Hash is any number that names it and all before it.
type BlockData struct {
	Hash   uint64   `json:"block_hash"`
	Tokens uint64   `json:"tokens_hash"`
	Extra  wire.Raw `json:"mm_extra_info"`
}

// RemovedData are blocks that are held no more.
type RemovedData struct {
	Hashes []uint64 `json:"block_hashes"`
}

// weight is how many blocks e speaks of.
func (e CacheEvent) weight() int {
	switch {
	case e.Data.Stored != nil:
		return len(e.Data.Stored.Blocks)
	case e.Data.Removed != nil:
		return len(e.Data.Removed.Hashes)
	}
	return 0
}

// cleared is all of an event that says that a cache was cleared.
const cleared = "cleared"

type dataMap struct {
	Stored  *StoredData  `json:"stored,omitempty"`
	Removed *RemovedData `json:"removed,omitempty"`
}

func (m dataMap) data() (Data, error) {
	if (m.Stored == nil) == (m.Removed == nil) {
		return Data{}, fmt.Errorf("%w: KV event: want stored, removed or %q", wire.ErrMalformed, cleared)
	}
	return Data(m), nil
}

func (d Data) value() any {
	if d == (Data{}) {
		return cleared
	}
	return dataMap(d)
}

// MarshalJSON implements json.Marshaler.
func (d Data) MarshalJSON() ([]byte, error) { return json.Marshal(d.value()) }

// EncodeMsgpack implements msgpack.CustomEncoder.
func (d Data) EncodeMsgpack(e *msgpack.Encoder) error { return e.Encode(d.value()) }

// UnmarshalJSON implements json.Unmarshaler.
func (d *Data) UnmarshalJSON(b []byte) error { return d.read(wire.JSON, b) }

// DecodeMsgpack implements msgpack.CustomDecoder.
func (d *Data) DecodeMsgpack(dec *msgpack.Decoder) error {
	b, err := dec.DecodeRaw()
	if err != nil {
		return err
	}
	return d.read(wire.Msgpack, b)
}

func (d *Data) read(c wire.Codec, b []byte) (err error) {
	*d = Data{}
	var word string
	if c.Decode(b, &word) == nil && word == cleared {
		return nil
	}
	var m dataMap
	if err = c.Decode(b, &m); err == nil {
		*d, err = m.data()
	}
	return err
}

// Topic is where KV events are told.
const Topic = "kv-events"

// Limits of one message.
const (
	MaxEvents = 128
	MaxBlocks = 8192
)

// EncodeBatch is the payload of a message with events, at most MaxEvents of at most MaxBlocks.
func EncodeBatch(events []RouterEvent) ([]byte, error) { return wire.Msgpack.Encode(events) }

// DecodeBatch reads the payload of a message.
func DecodeBatch(b []byte) (events []RouterEvent, err error) {
	err = wire.Msgpack.Decode(b, &events)
	return events, err
}
