package staged_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/transfer/staged"
)

// usual are the costs of two cores and a 10 Gb/s network.
var usual = staged.Costs{Arena: 64 << 20, Peers: 4, Local: 4e9, Wire: 1.25e9, Stream: 1.4e9, Latency: 200 * time.Microsecond, PerChunk: 300 * time.Microsecond}

func TestCut(t *testing.T) {
	with := func(f func(*staged.Costs)) staged.Costs {
		c := usual
		f(&c)
		return c
	}
	for name, x := range map[string]struct {
		costs staged.Costs
		chunk int64
		depth int32
	}{
		"usual":                    {usual, 4 << 20, 3},
		"nothing but bytes":        {with(func(c *staged.Costs) { c.PerChunk = 0 }), 64 << 10, 7},
		"a chunk costs much":       {with(func(c *staged.Costs) { c.PerChunk = 3 * time.Millisecond }), 4 << 20, 4},
		"and there is room":        {with(func(c *staged.Costs) { c.PerChunk, c.Arena = 3*time.Millisecond, 1<<30 }), 16 << 20, 3},
		"a fast copy":              {with(func(c *staged.Costs) { c.Local = 50e9 }), 4 << 20, 3},
		"a slow one":               {with(func(c *staged.Costs) { c.Local = 1e8 }), 512 << 10, 3},
		"one of many streams":      {with(func(c *staged.Costs) { c.Wire, c.Stream = 50e9, 0.5e9 }), 1 << 20, 12},
		"a fast network":           {with(func(c *staged.Costs) { c.Wire = 50e9 }), 2 << 20, 6},
		"a fast one far away":      {with(func(c *staged.Costs) { c.Wire, c.Latency = 12.5e9, 20*time.Millisecond }), 256 << 10, 64},
		"far away, for one peer":   {with(func(c *staged.Costs) { c.Latency, c.Peers = 20*time.Millisecond, 1 }), 4 << 20, 9},
		"many peers":               {with(func(c *staged.Costs) { c.Peers = 64 }), 128 << 10, 8},
		"a small arena":            {with(func(c *staged.Costs) { c.Arena = 1 << 20 }), 64 << 10, 12},
		"an arena of one chunk":    {with(func(c *staged.Costs) { c.Arena = 64 << 10 }), 64 << 10, 1},
		"nobody says how many are": {with(func(c *staged.Costs) { c.Peers = 0 }), 4 << 20, 3},
	} {
		if chunk, depth := x.costs.Chunk(), x.costs.Depth(x.chunk); chunk != x.chunk || depth != x.depth {
			t.Errorf("%s: chunks of %d KiB, %d a peer: want %d KiB, %d", name, chunk>>10, depth, x.chunk>>10, x.depth)
		}
	}
}

// TestCutFits: whatever is said, a Config can be made of it, and the peers fit if chunks
// could be made small enough.
func TestCutFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := staged.Costs{Arena: rapid.Int64Range(64<<10, 4<<30).Draw(t, "arena"), Peers: rapid.Int32Range(0, 1024).Draw(t, "peers"),
			Local: rapid.Float64Range(1e6, 1e12).Draw(t, "local"), Stream: rapid.Float64Range(1e6, 1e12).Draw(t, "stream"), Wire: rapid.Float64Range(1e6, 1e12).Draw(t, "wire"),
			Latency:  time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "latency")),
			PerChunk: time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "per chunk"))}
		chunk := c.Chunk()
		depth := c.Depth(chunk)
		n := c.Arena / chunk
		if err := (staged.Config{Chunks: int32(n), PerPeer: depth, MaxJobs: 1}).Check(); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if chunk > 64<<10 && int64(c.Peers)*int64(depth) > n {
			t.Fatalf("%+v: %d chunks for %d peers of %d", c, n, c.Peers, depth)
		}
	})
}
