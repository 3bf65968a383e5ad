package dynamo

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/kv"
)

// KV is how routers are told what the engine's prefix cache holds.
type KV struct {
	Events   string `yaml:"events"`    // nats or zmq, the deployment's event plane; "": nothing is told
	LiveOnly bool   `yaml:"live-only"` // routers cannot ask for what they missed
}

// Wanted says whether routers are told.
func (k KV) Wanted() bool { return k.Events != "" }

func (c *Config) checkKV() error {
	switch {
	case c.KV.Events != "" && c.KV.Events != "nats" && c.KV.Events != "zmq":
		return fmt.Errorf("kv.events: %.20q: want nats or zmq, as DYN_EVENT_PLANE", c.KV.Events)
	case c.KV.Events == "nats" && len(c.NATS.URLs) == 0:
		return fmt.Errorf("kv.events: nats: want nats.urls, or zmq, which needs no server")
	case c.KV.LiveOnly && !c.KV.Wanted():
		return fmt.Errorf("kv.live-only: want kv.events, nats or zmq")
	}
	return nil
}

// State is the endpoint that the cards of a group's workers name as kv_state_endpoint: KV
// events come under it.
func (c *Config) State() directory.Endpoint { return c.Endpoint("state") }

// ReadBlocks implements adapter.BlockReader.
func (a *Adapter) ReadBlocks(feed adapter.BlockFeed) { a.blocks = feed }

// tellKV begins to tell what the cache holds. end undoes it.
func (a *Adapter) tellKV(group, addr string, look time.Duration) error {
	if !a.cfg.KV.Wanted() || a.blocks == nil {
		return nil
	}
	at := a.cfg.State()
	sink := func() (kv.Sink, error) {
		listen := netip.MustParseAddrPort(a.cfg.Listen) // check has parsed it
		return kv.OverZMQ(at, listen.Addr(), a.cfg.advertise)
	}
	if a.cfg.KV.Events == "nats" {
		nc, err := a.cfg.NATS.Connect()
		if err != nil {
			return fmt.Errorf("nats: %w", err)
		}
		a.kvNATS = nc
		sink = func() (kv.Sink, error) { return kv.OverNATS(nc, at), nil }
	}
	a.kv.Store(kv.NewTeller(kv.Config{Group: group, State: at, Live: a.cfg.KV.LiveOnly, Sink: sink, NewID: NewID, Server: a.server, ID: a.id, Addr: addr, Codec: a.cfg.Codec,
		Backend: a.backend, Look: look, Log: a.Log}, a.blocks))
	return nil
}

// kvCounts is nil when nothing is told.
func (a *Adapter) kvCounts() *KVAnswer {
	t := a.kv.Load()
	if t == nil {
		return nil
	}
	c := t.Counts()
	return &KVAnswer{Sources: c.Sources, Waiting: c.Waiting, Blocks: c.Blocks, Apart: c.Apart, Untold: decimal(c.Untold), Missed: decimal(c.Missed), Queue: decimal(c.Queue),
		Lost: decimal(c.Lost), Events: decimal(c.Events), Messages: decimal(c.Messages), Asked: decimal(c.Asked)}
}

// Counts implements adapter.Counter; nil when routers are told nothing.
func (a *Adapter) Counts() map[string]float64 {
	t := a.kv.Load()
	if t == nil {
		return nil
	}
	c := t.Counts()
	return map[string]float64{
		"kv_sources": float64(c.Sources), "kv_waiting": float64(c.Waiting), "kv_blocks": float64(c.Blocks), "kv_apart_blocks": float64(c.Apart), "kv_queue": float64(c.Queue),
		"kv_stored_blocks_total": float64(c.Stored), "kv_removed_blocks_total": float64(c.Removed), "kv_cleared_total": float64(c.Cleared),
		"kv_untold_blocks_total": float64(c.Untold), "kv_missed_events_total": float64(c.Missed), "kv_events_total": float64(c.Events),
		"kv_messages_total": float64(c.Messages), "kv_message_bytes_total": float64(c.Bytes), "kv_lost_messages_total": float64(c.Lost), "kv_recoveries_total": float64(c.Asked),
	}
}
