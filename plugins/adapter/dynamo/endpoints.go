package dynamo

import (
	"context"
	"errors"
	"fmt"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Notice is an item of watch. The first one is begin, with the hand-offs that are held or
// running; gap says that Lost notices were missed.
type Notice struct {
	Kind       string       `json:"kind"`
	Label      string       `json:"label,omitempty"`
	ID         *ID          `json:"id,omitempty"`
	Params     Params       `json:"disaggregated_params,omitempty"` // exported
	Bytes      int64        `json:"bytes,omitempty"`
	Cached     int32        `json:"cached_tokens,omitempty"`
	Error      string       `json:"error,omitempty"`
	SourceSafe bool         `json:"source_safe,omitempty"`
	Lost       uint64       `json:"lost,omitempty"`
	Handoffs   []InfoAnswer `json:"handoffs,omitempty"`
}

// watch streams what happens, until the caller wants no more.
func (a *Adapter) watch(ctx context.Context, c plane.Call, out *plane.Stream) error {
	if err := out.Wait(); err != nil {
		return err
	}
	started := false
	for n, err := range a.news.log.Watch(ctx, control.Newest) {
		if err != nil {
			return ended(ctx)
		}
		item := Notice{Kind: "begin", Handoffs: []InfoAnswer{}}
		if started {
			item, err = notice(c.Codec, n)
		} else {
			for _, i := range a.news.now().Handoffs { // what happens from here on is told too
				item.Handoffs = append(item.Handoffs, info(i))
			}
		}
		if err != nil {
			return err
		}
		started = true
		if err := out.Send(item); err != nil {
			return err
		}
	}
	return plane.ErrClosed
}

// ended is nil when the caller itself ended its watch.
func ended(ctx context.Context) error {
	if why := context.Cause(ctx); !errors.Is(why, plane.ErrStopped) {
		return why
	}
	return nil
}

func notice(c wire.Codec, n control.Notice) (Notice, error) {
	d := Notice{Kind: n.Kind.String(), Label: n.Label, Bytes: n.Bytes, Cached: n.Cached, Error: name(n.Err), SourceSafe: n.SourceSafe, Lost: n.Lost}
	if n.ID != (handoff.ID{}) {
		id := FromID(n.ID)
		d.ID = &id
	}
	if n.Kind == control.Exported && n.Manifest != nil {
		b, err := c.Encode(FromManifest(*n.Manifest))
		if err != nil {
			return d, err
		}
		d.Params = Params{Carrier: b}
	}
	return d, nil
}

// StatusAnswer answers status.
type StatusAnswer struct {
	Group string `json:"group"`
	Pool  string `json:"pool"`
	Role  string `json:"role"`
	// State is not-ready, serving, draining or drained.
	State string `json:"state"`
	// SafeToDelete: the group drains, and no hand-off is held or runs.
	SafeToDelete bool   `json:"safe_to_delete"`
	Imports      int    `json:"imports"` // that have not ended
	Exports      int    `json:"exports"` // that are held
	Ranks        int32  `json:"ranks"`
	Model        string `json:"model"`
	WeightsEpoch string `json:"weights_epoch"`
	Geometry     string `json:"geometry"` // digest, hex
	Blocks       int32  `json:"blocks"`   // that a rank has, free or not: engines alone know which are
	Slots        int32  `json:"slots"`    // likewise
	BlockTokens  int32  `json:"block_tokens"`
	Carrier      string `json:"carrier"` // the version that is known here
	// KV is there when routers are told what the cache holds.
	KV *KVAnswer `json:"kv,omitempty"`
}

// KVAnswer is how routers are told what the cache holds.
type KVAnswer struct {
	Sources  int    `json:"sources"` // workers that routers hear of
	Waiting  int    `json:"waiting"` // workers that another source tells of
	Blocks   int    `json:"blocks"`  // told as held
	Apart    int    `json:"apart"`   // held, but not all before them: not told
	Untold   string `json:"untold"`  // blocks that could not be told, each time that one was stored
	Missed   string `json:"missed"`  // events of the cache that did not come: all was told anew
	Queue    string `json:"queue"`   // events that are not sent yet
	Lost     string `json:"lost"`    // messages, each for one router that was too slow
	Events   string `json:"events"`
	Messages string `json:"messages"`
	Asked    string `json:"asked"` // by routers that missed some, or are new
}

// status is the endpoint; its request may be anything.
func (a *Adapter) status(_ context.Context, _ plane.Call, out *plane.Stream) error {
	s := a.news.now()
	g := s.Group
	d := StatusAnswer{Group: g.Name, Pool: g.Pool, Role: string(g.Role), State: "serving", Ranks: g.Status.Ranks, Model: g.Model,
		WeightsEpoch: decimal(g.WeightsEpoch), Geometry: fmt.Sprintf("%x", g.Geometry[:]), Blocks: g.Status.Capacity.Blocks,
		Slots: g.Status.Capacity.Slots, BlockTokens: g.Status.Capacity.BlockTokens, Carrier: Carrier}
	d.KV = a.kvCounts()
	for _, i := range s.Handoffs {
		if i.Role == control.Source {
			d.Exports++
		} else {
			d.Imports++
		}
	}
	switch {
	case g.Status.Draining && len(s.Handoffs) == 0 && !s.More:
		d.State, d.SafeToDelete = "drained", true
	case g.Status.Draining:
		d.State = "draining"
	case !g.Status.Ready:
		d.State = "not-ready"
	}
	return out.Last(d)
}

// ReshardRequest is what endpoint reshard takes: two layouts as `baton plan` does, and a
// model that `baton plan --list` shows.
type ReshardRequest struct {
	Op          string `json:"op"` // plan, explain
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Model       string `json:"model"`
	Tokens      int32  `json:"tokens,omitempty"` // explain; 8192
	Format      string `json:"format,omitempty"` // explain: text, json, svg
}

// PlanAnswer answers plan.
type PlanAnswer struct {
	Digest string `json:"digest"` // hex
	Moves  []Move `json:"moves"`
}

// Move is one box from one rank to one rank.
type Move struct {
	State  string   `json:"state"`
	Src    int32    `json:"src"`
	Dst    int32    `json:"dst"`
	Layers [2]int32 `json:"layers"` // from, up to
	Units  [2]int32 `json:"units"`
}

// ExplainAnswer answers explain.
type ExplainAnswer struct {
	Text string `json:"text"`
}

const (
	planTokens = 8192
	maxLayout  = 256
)

// reshard is the endpoint.
func (a *Adapter) reshard(ctx context.Context, c plane.Call, out *plane.Stream) error {
	var q ReshardRequest
	if err := c.Decode(&q); err != nil {
		return err
	}
	for _, s := range []string{q.Source, q.Destination, q.Model} {
		if s == "" || len(s) > maxLayout {
			return plane.Fault(wire.InvalidArgument, "source, destination and model: want two layouts such as tp=2 and a model of baton plan --list, at most %d bytes each", maxLayout)
		}
	}
	p := plugins.PlanQuery{Source: plugins.Side{Layout: q.Source}, Destination: plugins.Side{Layout: q.Destination}, Model: q.Model}
	switch q.Op {
	case "plan":
		plan, err := a.Reshard.Plan(ctx, p)
		if err != nil {
			return err
		}
		d := PlanAnswer{Digest: fmt.Sprintf("%x", plan.Digest[:]), Moves: []Move{}}
		for _, m := range plan.Moves {
			d.Moves = append(d.Moves, Move{State: plan.Model.States[m.State].Name, Src: int32(m.Src), Dst: int32(m.Dst),
				Layers: [2]int32{m.Box.Layers.Lo, m.Box.Layers.Hi}, Units: [2]int32{m.Box.Units.Lo, m.Box.Units.Hi}})
		}
		return out.Last(d)
	case "explain":
		format, ok := map[string]plugins.Format{"": plugins.Text, "text": plugins.Text, "json": plugins.JSON, "svg": plugins.SVG}[q.Format]
		if !ok {
			return plane.Fault(wire.InvalidArgument, "format %.20q: want text, json or svg", q.Format)
		}
		if q.Tokens == 0 {
			q.Tokens = planTokens
		}
		b, err := a.Reshard.Explain(ctx, p, q.Tokens, format)
		if err != nil {
			return err
		}
		return out.Last(ExplainAnswer{string(b)})
	}
	return plane.Fault(wire.InvalidArgument, "op %.40q: want plan or explain", q.Op)
}
