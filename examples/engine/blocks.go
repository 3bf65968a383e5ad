package engine

import (
	"slices"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/sidecar/engine/blockhash"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Rank 0 tells its sidecar what the prefix cache holds: a block is named by its hash, and told
// with its tokens. An import's tokens are known once a request takes it that brings them, and
// what an earlier role's sidecar was told is told anew once a prompt meets it again: until
// then nobody is sent here for it, which costs a prefill and no more.

// tells says whether somebody may want to know.
func (r *Rank) tells() bool { return r.sched != nil && r.session != nil }

// evicted is called for each block that leaves the prefix cache.
func (r *Rank) evicted(hash uint64) {
	if !r.tells() {
		return
	}
	if n := len(r.news); n == 0 || r.news[n-1].Kind != handoff.BlocksRemoved {
		r.news = append(r.news, handoff.BlockEvent{Kind: handoff.BlocksRemoved})
	}
	last := &r.news[len(r.news)-1]
	last.Removed = append(last.Removed, hash)
}

// cached tells of a prompt's blocks that the prefix cache holds, whoever brought them. Blocks
// of older weights are found by no prompt any more.
func (r *Rank) cached(q *request, prompt []int32) {
	size := int(r.cfg.BlockTokens)
	if !r.tells() || q.epoch != r.cfg.WeightsEpoch || len(prompt) < len(q.hashes)*size {
		return
	}
	e := handoff.BlockEvent{Kind: handoff.BlocksStored, BlockTokens: r.cfg.BlockTokens}
	for i, h := range q.hashes {
		if !r.pool.Caches(h) {
			break
		}
		e.Blocks = append(e.Blocks, handoff.StoredBlock{ID: h, Tokens: prompt[i*size : (i+1)*size]})
	}
	if len(e.Blocks) > 0 {
		r.news = append(r.news, e)
	}
}

// imported is cached for an import and the request that takes it. The sidecars have checked
// the prompt of who asked for the import; who adopts one may say anything.
func (r *Rank) imported(q *request, by front.Request) error {
	if by.Mode == front.Adopt {
		hashes, err := blockhash.Hashes(by.Tokens, r.cfg.BlockTokens, r.salt())
		if err != nil || !slices.Equal(hashes, q.hashes) {
			return nil
		}
	}
	r.cached(q, by.Tokens)
	return r.tellBlocks()
}

// forgot tells that the prefix cache holds nothing, or nothing that a prompt finds.
func (r *Rank) forgot() {
	if r.tells() {
		r.news = []handoff.BlockEvent{{Kind: handoff.BlocksCleared}}
	}
}

// tellBlocks sends what there is to tell, at the end of a step.
func (r *Rank) tellBlocks() error {
	if len(r.news) == 0 {
		return nil
	}
	m := handoff.BlockEvents{Events: r.news}
	r.news = nil
	return r.send(m)
}
