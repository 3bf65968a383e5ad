package dynamo

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/events/nats"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Topic is where a group tells what happens, on Dynamo's event plane: under the scope of its
// endpoint handoff, over NATS. Nothing waits for who hears it.
const Topic = "baton-handoff"

// Lifecycle is the payload of an event. It has no key: who hears it may not import.
type Lifecycle struct {
	// Kind is up and down of the adapter, gap, or what watch has.
	Kind       string `json:"kind"`
	Group      string `json:"group"`
	Role       string `json:"role"`
	Label      string `json:"label,omitempty"`
	ID         *ID    `json:"id,omitempty"`
	Tokens     int32  `json:"tokens,omitempty"` // exported: of the prompt
	Bytes      int64  `json:"bytes,omitempty"`
	Cached     int32  `json:"cached_tokens,omitempty"`
	MoveMicros int64  `json:"move_us,omitempty"`
	Error      string `json:"error,omitempty"`
	SourceSafe bool   `json:"source_safe,omitempty"`
	Lost       uint64 `json:"lost,omitempty"`
}

func lifecycle(g adapter.Group, n control.Notice) Lifecycle {
	d := Lifecycle{Kind: n.Kind.String(), Group: g.Name, Role: string(g.Role), Label: n.Label, Bytes: n.Bytes, Cached: n.Cached,
		MoveMicros: n.Phases.Move.Microseconds(), Error: name(n.Err), SourceSafe: n.SourceSafe, Lost: n.Lost}
	if n.ID != (handoff.ID{}) {
		id := FromID(n.ID)
		d.ID = &id
	}
	if n.Manifest != nil {
		d.Tokens = n.Manifest.Tokens
	}
	return d
}

// publisher tells events. A nil one tells nobody. Safe for concurrent use: an adapter may be
// closed while it is notified.
type publisher struct {
	nc      *natsgo.Conn
	id      uint64
	subject string
	log     *slog.Logger

	mu      sync.Mutex // guards:
	seq     uint64
	failing bool
}

func newPublisher(cfg nats.Config, e directory.Endpoint, log *slog.Logger) (*publisher, error) {
	nc, err := cfg.Connect()
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	return &publisher{nc: nc, id: NewID(), subject: directory.SubjectPrefix(e) + "." + Topic, log: log}, nil
}

// tell publishes, or drops: the next event's number then shows that one is missing.
func (p *publisher) tell(l Lifecycle) {
	if p == nil {
		return
	}
	payload, err := wire.Msgpack.Encode(l)
	p.mu.Lock()
	defer p.mu.Unlock()
	var b []byte
	if err == nil {
		b, err = wire.Event{Publisher: p.id, Sequence: p.seq, PublishedAt: uint64(time.Now().UnixMilli()), Topic: Topic, Payload: payload}.Encode()
	}
	p.seq++
	if err == nil {
		err = p.nc.Publish(p.subject, b)
	}
	if errors.Is(err, natsgo.ErrReconnectBufExceeded) { // nothing is kept for a server that is away
		err = errors.Join(natsgo.ErrDisconnected, p.nc.LastError())
	}
	if err != nil && !p.failing {
		p.log.Warn("events of Dynamo's event plane are dropped until NATS at nats.urls answers", "err", err)
	}
	p.failing = err != nil
}

// lastWithin bounds the last words.
const lastWithin = 500 * time.Millisecond

func (p *publisher) close() {
	if p == nil {
		return
	}
	if p.nc.IsConnected() {
		if err := p.nc.FlushTimeout(lastWithin); err != nil {
			p.log.Debug("the last events were not flushed", "err", err)
		}
	}
	p.nc.Close()
}
