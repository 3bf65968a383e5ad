package metrics

import "github.com/prometheus/client_golang/prometheus"

// Blocks is what a sidecar knows of its engine's prefix cache.
type Blocks struct {
	Known   int    // blocks that the engine holds; 0 while nobody reads
	Events  uint64 // changes that it told
	Gaps    uint64 // how often a reader was too slow and began anew
	Ignored uint64 // blocks beyond the engine's capacity
	Refused uint64 // events that cannot be, or that were not asked for
}

// Blocks shows them; at most once.
func (m *Metrics) Blocks(now func() Blocks) {
	m.show(prometheus.GaugeOpts{Name: "blocks_known", Help: "Blocks of the engine's prefix cache that readers of blocks are told of; 0 while nobody reads."},
		func() float64 { return float64(now().Known) })
	m.count("block_events_total", "Changes of its prefix cache that the engine told.", func() uint64 { return now().Events })
	m.count("block_gaps_total", "How often a reader of blocks was too slow, and was told everything anew.", func() uint64 { return now().Gaps })
	m.count("blocks_ignored_total", "Blocks that the engine told of beyond its capacity.", func() uint64 { return now().Ignored })
	m.count("block_events_refused_total", "Block events that cannot be, or that were not asked for.", func() uint64 { return now().Refused })
}
