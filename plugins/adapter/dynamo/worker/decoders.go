package worker

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// decoders are the workers that go on with what a prefill worker begins: it knows by their cards what
// none of them can hold, and need not compute that.
type decoders struct {
	backend directory.Backend
	prefix  string
	model   string
	log     *slog.Logger
	stop    context.CancelFunc
	done    chan struct{}

	mu   sync.Mutex // guards:
	room int64      // tokens of prompt and answer that the largest holds; 0: not known
	more int64      // that a larger one held, until then
	then time.Time
}

// comesBack is how long one that is gone may come back: it drains, or is started again.
const comesBack = 30 * time.Second

// see takes what the largest holds.
func (d *decoders) see(room int64, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !now.Before(d.then) {
		d.more = 0
	}
	if d.room > room {
		d.more, d.then = max(d.more, d.room), now.Add(comesBack)
	}
	d.room = room
}

// followDecoders starts to read their cards, until close. The backend stays its owner's.
func followDecoders(b directory.Backend, c Config) *decoders {
	d := &decoders{backend: b, prefix: directory.Models + c.Dynamo.Namespace + "/", model: c.Model, log: c.Log, done: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	go d.follow(ctx)
	return d
}

func (d *decoders) close() {
	if d != nil {
		d.stop()
		<-d.done
	}
}

// again is the pause before a directory that failed is watched again.
const again = time.Second

func (d *decoders) follow(ctx context.Context) {
	defer close(d.done)
	for ctx.Err() == nil {
		for s, err := range d.backend.Watch(ctx, d.prefix) {
			if err != nil {
				d.log.Debug("the cards of decode workers are not known", "err", err)
				break
			}
			d.see(d.most(s), time.Now())
		}
		d.see(0, time.Now())
		pause.For(ctx, again)
	}
}

// most is what the largest holds, 0 when one does not tell.
func (d *decoders) most(cards directory.Snapshot) (room int64) {
	for _, r := range cards {
		var m directory.Model
		var c struct {
			Name    string `json:"display_name"`
			Block   int64  `json:"kv_cache_block_size"`
			Type    string `json:"model_type"`
			Worker  string `json:"worker_type"`
			Runtime struct {
				Blocks int64 `json:"total_kv_blocks"`
			} `json:"runtime_config"`
		}
		if json.Unmarshal(r.Value, &m) != nil {
			continue
		}
		err := json.Unmarshal(m.Card, &c)
		switch {
		case err == nil && (c.Name != d.model || c.Worker == "prefill" || c.Worker == "encode" || c.Type == "Prefill"):
		case err != nil, c.Runtime.Blocks < 1, c.Block < 1, c.Runtime.Blocks > math.MaxInt32, c.Block > math.MaxInt32:
			return 0
		default:
			room = max(room, c.Runtime.Blocks*c.Block+1) // the last token is not computed
		}
	}
	return room
}

// tooLong says why n tokens of prompt and answer can be decoded by nobody, nil if they can, or
// that is not known.
func (d *decoders) tooLong(n int, now time.Time) error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	const text = "%s: %d tokens of prompt and answer, the decode worker with most room holds %d"
	switch tokens := int64(n); {
	case d.room == 0 || tokens <= d.room:
		return nil
	case tokens <= d.more && now.Before(d.then):
		return plane.Fault(wire.Unavailable, text+"; one that holds %d was there a moment ago", "handoff.not-ready", n, d.room, d.more)
	}
	return plane.Fault(wire.InvalidArgument, text, "handoff.capacity", n, d.room)
}
