package client_test

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// An engine of one rank: 64 blocks of 16 tokens, one layer, two KV heads of 64 bf16,
// in a memfd that is sealed against shrinking. It exports what it has prefilled and
// takes what is imported.
func Example() {
	fd, export := 0, make(chan handoff.Export) // the engine's own
	attach := handoff.Attach{Group: "decode-0", Instance: 1, Ranks: 1,
		Model: handoff.ModelIdentity{Name: "tiny", Layout: layout.Model{States: []layout.State{
			{Name: "attn.k", Paging: layout.PerBlock, Layers: 1, Units: 2, Elems: 64}}}},
		Shards: []layout.Shard{{Box: layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: 2}},
			Rows: 16, Items: 64, DType: layout.BF16, View: layout.View{Layer: 64 * 4096, Item: 4096, Row: 256, Unit: 128, Elem: 2}}},
		Buffers:   []handoff.BufferDecl{{ID: 0, Len: 64 * 4096}},
		Capacity:  handoff.Capacity{Blocks: 64, BlockTokens: 16},
		Scheduler: handoff.SchedulerRank, OnDown: handoff.OnDownFail}
	c, err := client.Dial(context.Background(), client.Config{Dir: "/run/baton", Attach: attach, Files: []int{fd}})
	for ; err == nil; err = c.Err() {
		select {
		case e := <-export: // blocks stay untouched until decision Free
			c.Send(e)
		case <-c.Wake():
		}
		for _, m := range c.Poll(nil) {
			switch m := m.(type) {
			case handoff.Exported: // m.Manifest goes to whoever imports
			case handoff.Through: // in one engine step, the same on every rank
				for _, d := range c.Decisions(m.N) {
					if d.Kind == handoff.Reserve { // take blocks for d.Tokens, or say Full
						blocks := []int32{0}
						c.Send(handoff.Reserved{N: d.N, Blocks: blocks, Slot: -1, Digest: sha256.Sum256(fmt.Append(nil, blocks))})
					} // Admit: decode from d.Of's blocks. Drop, ReleaseQuarantine, Free: see DecisionKind
				}
				c.Send(handoff.Applied{N: m.N})
			}
		}
	}
	fmt.Println(err) // closed, or the sidecar says that the group must be launched anew
}
