package client

import (
	"testing"

	"github.com/batonkv/baton/proto/codec"
	enginev1 "github.com/batonkv/baton/proto/engine/v1"
	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/handoff"
)

// TestSnapshotsAreMadeAside: what the sidecar is to hear of a cache that holds much already is not
// made under the lock that the engine's Send waits for, and comes whole, once for each asking.
func TestSnapshotsAreMadeAside(t *testing.T) {
	const n = 300
	s := &session{out: pump.New[*enginev1.FromEngine](sendQueue)}
	c := &Client{ses: s, wake: make(chan struct{}, 1), telling: newTelling(handoff.Attach{TellsBlocks: true, Capacity: handoff.Capacity{Blocks: n}})}
	for id := uint64(1); id <= n; id++ {
		e := handoff.BlockEvent{Kind: handoff.BlocksStored, Parent: id - 1, BlockTokens: 1, Blocks: []handoff.StoredBlock{{ID: id, Tokens: []int32{1}}}}
		if err := c.changed(handoff.BlockEvents{Events: []handoff.BlockEvent{e}}); err != nil {
			t.Fatal(err)
		}
	}
	c.mu.Lock()
	c.asked(handoff.TellBlocks{On: true})
	if c.telling.making == nil || c.telling.making != c.telling.reader {
		t.Error("the content was made ready by who asked")
	}
	c.asked(handoff.TellBlocks{On: true}) // while that is made
	c.mu.Unlock()
	cleared, stored := 0, 0
	err := s.out.Run(func(p *enginev1.FromEngine) error {
		m, err := codec.DecodeFromEngine(p)
		if err != nil {
			return err
		}
		for _, e := range m.(handoff.BlockEvents).Events {
			if stored += len(e.Blocks); e.Kind == handoff.BlocksCleared {
				cleared++
			}
		}
		if stored >= n {
			s.out.Close(nil)
		}
		c.told(s)
		return nil
	})
	c.wg.Wait()
	if err != nil || cleared != 2 || stored != n || c.telling.making != nil {
		t.Errorf("%v, %d times cleared, %d blocks", err, cleared, stored)
	}
}
