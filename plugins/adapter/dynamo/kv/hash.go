package kv

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// seed is what Dynamo's routers hash tokens with.
const seed = 1337

// SeedOf is the seed of blocks that a LoRA adapter computed; no name is the base model.
func SeedOf(lora string) uint64 {
	if lora == "" {
		return seed
	}
	return seed + xxh3.HashString(lora)
}

// TokensHash is by which a router finds a block: of its tokens alone, whatever is before it.
func TokensHash(seed uint64, tokens []int32) uint64 {
	var small [512]byte
	b := small[:0]
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	return xxh3.HashSeed(b, seed)
}

// SequenceHash names a block together with all before it: that of the first one is its
// TokensHash.
func SequenceHash(parent, tokens uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], parent)
	binary.LittleEndian.PutUint64(b[8:], tokens)
	return xxh3.HashSeed(b[:], seed)
}
