package layout

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
)

// Digest identifies m: two models with the same states in the same order.
func (m Model) Digest() [32]byte {
	h := sha256.New()
	m.hash(h)
	return [32]byte(h.Sum(nil))
}

// GeometryDigest identifies a group's geometry: its model and its shards, views
// and all, in whatever order they were stated.
func GeometryDigest(m Model, shards []Shard) [32]byte {
	if !slices.IsSortedFunc(shards, CompareShards) {
		shards = slices.Clone(shards)
		slices.SortFunc(shards, CompareShards)
	}
	h := sha256.New()
	m.hash(h)
	// One Write for many shards: the hash is fast, calls through the interface are not.
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 64*shardBytes), uint64(len(shards)))
	for i := range shards {
		if len(b)+shardBytes > cap(b) {
			h.Write(b)
			b = b[:0]
		}
		b = shards[i].append(b)
	}
	h.Write(b)
	return [32]byte(h.Sum(nil))
}

const shardBytes = 4*10 + 8*6

func (s *Shard) append(b []byte) []byte {
	for _, v := range [...]int32{s.State, int32(s.Rank), s.Box.Layers.Lo, s.Box.Layers.Hi, s.Box.Units.Lo, s.Box.Units.Hi,
		s.Rows, s.Items, int32(s.DType), int32(s.View.Buffer)} {
		b = binary.BigEndian.AppendUint32(b, uint32(v))
	}
	v := &s.View
	for _, x := range [...]int64{v.Off, v.Layer, v.Item, v.Row, v.Unit, v.Elem} {
		b = binary.BigEndian.AppendUint64(b, uint64(x))
	}
	return b
}

func (m Model) hash(h hash.Hash) {
	b := append([]byte("baton/model/1"), 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.States)))
	for _, s := range m.States {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s.Name)))
		b = append(b, s.Name...)
		b = append(b, byte(s.Paging))
		for _, v := range [...]int32{s.Layers, s.Units, s.Elems} {
			b = binary.BigEndian.AppendUint32(b, uint32(v))
		}
	}
	h.Write(b)
}
