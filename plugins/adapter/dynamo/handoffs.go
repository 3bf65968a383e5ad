package dynamo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// HandoffRequest is what endpoint handoff takes; Op says which fields count.
type HandoffRequest struct {
	Op string `json:"op"` // import, abort, release, get, list, await, watch
	// import: Params or Manifest, and the prompt. Label is the decode engine's name of the
	// request.
	Params   Params    `json:"disaggregated_params,omitempty"`
	Manifest *Manifest `json:"manifest,omitempty"`
	Label    string    `json:"label,omitempty"` // of await: the prefill engine's
	Tokens   []int32   `json:"tokens,omitempty"`
	// Deadline bounds an import and an await, in milliseconds; 0: 60 s.
	Deadline int64  `json:"deadline_ms,omitempty"`
	ID       *ID    `json:"id,omitempty"`  // abort, release, get
	Key      string `json:"key,omitempty"` // abort, release
	Page     string `json:"page,omitempty"`
	Limit    int32  `json:"limit,omitempty"` // list
}

// ImportAnswer answers import.
type ImportAnswer struct {
	Label  string           `json:"label"`
	ID     ID               `json:"id"`
	Bytes  int64            `json:"bytes"`
	Cached int32            `json:"cached_tokens"`
	Phases map[string]int64 `json:"phases_us"` // open, reserve, move, check, done, admit
}

// InfoAnswer answers get; list has many.
type InfoAnswer struct {
	ID         ID     `json:"id"`
	Role       string `json:"role"` // source, destination
	Phase      string `json:"phase"`
	Label      string `json:"label"`
	Copies     int32  `json:"copies"`
	Bytes      int64  `json:"bytes"`
	Error      string `json:"error,omitempty"`
	SourceSafe bool   `json:"source_safe"`
}

// ListAnswer answers list. Next asks for what follows; "": nothing does.
type ListAnswer struct {
	Handoffs []InfoAnswer `json:"handoffs"`
	Next     string       `json:"next"`
}

// AwaitAnswer answers await: what the prefill engine's handler returns to its router.
type AwaitAnswer struct {
	Label  string `json:"label"`
	ID     ID     `json:"id"`
	Params Params `json:"disaggregated_params"`
}

// Done answers what has no other answer.
type Done struct {
	OK bool `json:"ok"`
}

// Waits of an import and an await.
const (
	defaultDeadline = time.Minute
	longestDeadline = 10 * time.Minute
	abortWithin     = 10 * time.Second
)

// handoff is the endpoint.
func (a *Adapter) handoff(ctx context.Context, c plane.Call, out *plane.Stream) error {
	var q HandoffRequest
	if err := c.Decode(&q); err != nil {
		return err
	}
	switch q.Op {
	case "import":
		return a.imports(ctx, c, q, out)
	case "await":
		return a.await(ctx, c, q, out)
	case "watch":
		return a.watch(ctx, c, out)
	case "list":
		page, err := a.calls.List(ctx, control.Query{Page: q.Page, Limit: q.Limit})
		if err != nil {
			return err
		}
		ans := ListAnswer{Handoffs: []InfoAnswer{}, Next: page.Next}
		for _, i := range page.Infos {
			ans.Handoffs = append(ans.Handoffs, info(i))
		}
		return out.Last(ans)
	}
	return a.one(ctx, q, out)
}

// one is what names one hand-off.
func (a *Adapter) one(ctx context.Context, q HandoffRequest, out *plane.Stream) error {
	if q.ID == nil {
		q.ID = &ID{}
	}
	id, err := q.ID.ID()
	switch q.Op {
	case "abort", "release", "get":
	default:
		return plane.Fault(wire.InvalidArgument, "op %.40q: want import, abort, release, get, list, await or watch", q.Op)
	}
	if err != nil {
		return err
	}
	if q.Op == "get" {
		i, err := a.calls.Get(ctx, id)
		if err != nil {
			return err
		}
		return out.Last(info(i))
	}
	// Whoever lists or watches knows ids; the key is in the manifest alone.
	var r reader
	var key handoff.Key
	if r.hex("key", q.Key, key[:]); r.err != nil {
		return r.err
	}
	if q.Op == "abort" {
		err = a.calls.Abort(ctx, id, key)
	} else {
		err = a.calls.Release(ctx, id, key)
	}
	if err != nil {
		return err
	}
	return out.Last(Done{true})
}

func info(i control.Info) InfoAnswer {
	role := "source"
	if i.Role == control.Destination {
		role = "destination"
	}
	d := InfoAnswer{ID: FromID(i.ID), Role: role, Phase: i.Phase.String(), Label: i.Label, Copies: i.Copies, Bytes: i.Bytes, SourceSafe: i.SourceSafe}
	if i.Err != nil {
		d.Error = i.Err.Error()
	}
	return d
}

// within reads a deadline.
func within(ms int64) (time.Duration, error) {
	switch {
	case ms == 0:
		return defaultDeadline, nil
	case ms < 0 || ms > longestDeadline.Milliseconds():
		return 0, fmt.Errorf("%w: deadline_ms: %d: want 1 to %d", handoff.ErrBound, ms, longestDeadline.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// request is the import that q asks for, within the bounds that every other door has.
func (q HandoffRequest) request(c wire.Codec) (m handoff.Import, err error) {
	m = handoff.Import{Label: q.Label, Tokens: q.Tokens}
	if m.Deadline, err = within(q.Deadline); err != nil {
		return m, err
	}
	switch {
	case q.Manifest != nil:
		m.Manifest, err = q.Manifest.Manifest()
	default:
		var ok bool
		if m.Manifest, ok, err = q.Params.Carried(c); err == nil && !ok {
			err = fmt.Errorf("%w: import: no manifest and no disaggregated_params with %s: prefill here instead", handoff.ErrBound, Carrier)
		}
	}
	if err == nil {
		_, err = codec.ToImport(m)
	}
	return m, err
}

// imports brings a hand-off in. A caller that stops or goes away aborts it, unless another
// call of it runs here: one that was made again, as a rule. The answer tells how that ended.
// The end of the server aborts nothing: the import goes on, and get tells.
func (a *Adapter) imports(ctx context.Context, c plane.Call, q HandoffRequest, out *plane.Stream) error {
	m, err := q.request(c.Codec)
	if err != nil {
		return err
	}
	run, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.Deadline+abortWithin)
	defer cancel()
	leave := a.callers.enter(m.Manifest)
	defer leave()
	var aborting sync.WaitGroup
	defer aborting.Wait()
	over := make(chan struct{})
	defer close(over)
	aborting.Go(func() {
		select {
		case <-over:
			return
		case <-ctx.Done():
		}
		if why := context.Cause(ctx); errors.Is(why, plane.ErrClosed) {
			cancel()
			return
		}
		if !leave() {
			return
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortWithin)
		defer cancel()
		if err := a.calls.Abort(last, m.Manifest.ID, m.Manifest.Key); err != nil {
			a.Log.Debug("an import whose caller has gone was not aborted", "id", m.Manifest.ID.String(), "err", err)
		}
	})
	got, err := a.calls.Import(run, m)
	if err != nil {
		return err
	}
	p := got.Phases
	return out.Last(ImportAnswer{Label: got.Label, ID: FromID(got.ID), Bytes: got.Bytes, Cached: got.Cached, Phases: map[string]int64{
		"open": p.Open.Microseconds(), "reserve": p.Reserve.Microseconds(), "move": p.Move.Microseconds(),
		"check": p.Check.Microseconds(), "done": p.Done.Microseconds(), "admit": p.Admit.Microseconds()}})
}

// callers are the calls that wait for imports here, by what they import.
type callers struct {
	mu sync.Mutex // guards:
	of map[owned]int
}

// owned is a hand-off in the words of one who has its manifest.
type owned struct {
	id  handoff.ID
	key handoff.Key
}

// enter adds a call. leave takes it out, once, and says whether it was the last of its import.
func (c *callers) enter(m handoff.Manifest) (leave func() bool) {
	o := owned{m.ID, m.Key}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[owned]int{}
	}
	c.of[o]++
	return sync.OnceValue(func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.of[o]--; c.of[o] > 0 {
			return false
		}
		delete(c.of, o)
		return true
	})
}

// await waits for an export of a label, and gives what the request carries to decode.
func (a *Adapter) await(ctx context.Context, c plane.Call, q HandoffRequest, out *plane.Stream) error {
	d, err := within(q.Deadline)
	if err == nil {
		err = out.Wait()
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("%w: %.80q was not exported within %v", handoff.ErrDeadline, q.Label, d))
	defer cancel()
	for {
		m, ok, change := a.news.export(q.Label)
		if ok {
			b, err := c.Codec.Encode(FromManifest(m))
			if err != nil {
				return err
			}
			return out.Last(AwaitAnswer{Label: m.Label, ID: FromID(m.ID), Params: Params{Carrier: b}})
		}
		if change == nil {
			return plane.ErrClosed
		}
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// name is an error as notices have it.
func name(err error) string {
	if err == nil {
		return ""
	}
	if n := errs.Name(err); n != "" {
		return n + ": " + err.Error()
	}
	return err.Error()
}
