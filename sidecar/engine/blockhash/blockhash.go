// Package blockhash computes the hash chain that names a prefix of a prompt, block
// by block, as the reference does: two prompts share a hash exactly when they share
// every token up to the end of that block. Only complete blocks have a hash. The
// package is pure.
//
//	digest_i = SHA-256(digest_{i-1} || tokens of block i as little-endian int64)
//	hash_i   = u64le(digest_i[:8]) mod (2^63-1) + 1
//
// The chain starts from 32 zero bytes. Hashes lie in [1, 2^63-1], so 0 is free to
// mean "none".
package blockhash

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
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

// New starts the reference's chain for blocks of blockTokens tokens.
func New(blockTokens int32) (*Chain, error) { return NewEpoch(blockTokens, 0) }

// NewEpoch starts a chain that is salted with the weights epoch, so that the cache of
// old weights is never hit. Epoch 0 is the reference's unsalted chain.
func NewEpoch(blockTokens int32, epoch uint64) (*Chain, error) {
	if blockTokens < 1 || blockTokens > MaxBlockTokens {
		return nil, fmt.Errorf("%w: %d tokens, want 1 to %d", ErrBlock, blockTokens, MaxBlockTokens)
	}
	c := &Chain{block: blockTokens, sum: sha256.New()}
	if epoch != 0 {
		salt := binary.LittleEndian.AppendUint64([]byte("baton weights epoch "), epoch)
		c.digest = sha256.Sum256(salt)
	}
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

// Hashes returns the chain of all complete blocks of tokens under a weights epoch.
func Hashes(tokens []int32, blockTokens int32, epoch uint64) ([]uint64, error) {
	c, err := NewEpoch(blockTokens, epoch)
	if err != nil {
		return nil, err
	}
	return c.Append(make([]uint64, 0, len(tokens)/int(blockTokens)), tokens), nil
}
