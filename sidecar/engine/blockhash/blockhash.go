// Package blockhash computes the hash chain that names a prefix of a prompt, block
// by block, as the reference does: two prompts share a hash exactly when they share
// every token up to the end of that block. Only complete blocks have a hash. The
// package is pure.
//
//	digest_i = SHA-256(digest_{i-1} || tokens of block i as little-endian int64)
//	hash_i   = u64le(digest_i[:8]) mod (2^63-1) + 1
//
// The chain starts from 32 zero bytes, or from a digest of its Salt. Hashes lie in [1, 2^63-1], so 0 is free to
// mean "none".
package blockhash

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"

	"github.com/batonkv/baton/sidecar/handoff"
)

// ErrBlock reports a block size that no chain can have.
var ErrBlock = errors.New("blockhash: bad block size")

// MaxBlockTokens bounds the tokens of one block.
const MaxBlockTokens = 1 << 16

// Chain hashes the tokens of one request as they come. The zero Chain is not usable.
type Chain struct {
	block  int32
	filled int32 // tokens of the open block that are in sum already
	sum    hash.Hash
	digest [sha256.Size]byte // of the last complete block
	used   int               // bytes of buf that are not in sum yet
	buf    [512]byte
}

// Salt is what two prompts of equal tokens may differ in all the same: a chain that
// starts from another Salt shares no hash. The zero Salt is the reference's chain.
type Salt struct {
	Model        string // name of the model
	LoRA         string // adapter that the request runs with
	Namespace    string // cache namespace: a tenant, a user
	Media        [32]byte
	WeightsEpoch uint64 // of the weights that make the state
}

// For is the salt of a request in a group: everything that computes its hashes, engine or
// sidecar, calls it. Where weights may change under a cache that stays good, their epoch
// is no part of it.
func For(m handoff.ModelIdentity, p handoff.WeightsPolicy, s handoff.Salt) Salt {
	out := Salt{Model: m.Name, LoRA: s.LoRA, Namespace: s.Namespace, Media: s.Media}
	if p != handoff.WeightsAllow {
		out.WeightsEpoch = m.WeightsEpoch
	}
	return out
}

// start is what the chain begins with. Every field has its length before it, so that no
// two salts are written alike.
func (s Salt) start() (d [sha256.Size]byte) {
	if s == (Salt{}) {
		return d
	}
	b := []byte("baton block salt 1\n")
	for _, f := range []string{s.Model, s.LoRA, s.Namespace} {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(f)))
		b = append(b, f...)
	}
	b = append(b, s.Media[:]...)
	return sha256.Sum256(binary.LittleEndian.AppendUint64(b, s.WeightsEpoch))
}

// New starts a chain for blocks of blockTokens tokens.
func New(blockTokens int32, s Salt) (*Chain, error) {
	if blockTokens < 1 || blockTokens > MaxBlockTokens {
		return nil, fmt.Errorf("%w: %d tokens, want 1 to %d", ErrBlock, blockTokens, MaxBlockTokens)
	}
	c := &Chain{block: blockTokens, sum: sha256.New(), digest: s.start()}
	c.sum.Write(c.digest[:])
	return c, nil
}

// Append adds tokens and appends the hash of every block that they complete to dst.
// It allocates only when dst has to grow.
func (c *Chain) Append(dst []uint64, tokens []int32) []uint64 {
	for _, t := range tokens {
		if c.used == len(c.buf) {
			c.flush()
		}
		binary.LittleEndian.PutUint64(c.buf[c.used:], uint64(int64(t)))
		c.used += 8
		if c.filled++; c.filled == c.block {
			dst = append(dst, c.close())
		}
	}
	return dst
}

// Open is the number of tokens in the incomplete last block.
func (c *Chain) Open() int32 { return c.filled }

func (c *Chain) flush() {
	c.sum.Write(c.buf[:c.used])
	c.used = 0
}

// close ends the block, starts the next one and returns the hash.
func (c *Chain) close() uint64 {
	c.flush()
	c.sum.Sum(c.digest[:0])
	c.sum.Reset()
	c.sum.Write(c.digest[:])
	c.filled = 0
	return binary.LittleEndian.Uint64(c.digest[:8])%(1<<63-1) + 1
}

// Hashes returns the chain of all complete blocks of tokens.
func Hashes(tokens []int32, blockTokens int32, s Salt) ([]uint64, error) {
	c, err := New(blockTokens, s)
	if err != nil {
		return nil, err
	}
	return c.Append(make([]uint64, 0, len(tokens)/int(blockTokens)), tokens), nil
}
