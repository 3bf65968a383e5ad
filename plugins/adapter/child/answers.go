package child

import (
	"context"
	"fmt"
	"sync"

	"github.com/batonkv/baton/plugins/adapter"
	adapterv1 "github.com/batonkv/baton/proto/adapter/v1"
	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// answers are the sidecar's side of the stream on which an adapter asks.
type answers struct {
	to   adapter.Calls
	out  *pump.Pump[*adapterv1.Answer]
	work sync.WaitGroup

	mu   sync.Mutex // guards:
	open map[uint64]context.CancelFunc
}

// answer opens the stream, and answers on it until ctx or the adapter ends it.
func answer(ctx context.Context, c adapterv1.AdapterClient, to adapter.Calls) *answers {
	// A place for each question that runs, and for each that is refused beyond them.
	a := &answers{to: to, out: pump.New[*adapterv1.Answer](4 * adapter.MaxAsks), open: map[uint64]context.CancelFunc{}}
	a.work.Go(func() {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // and so every question that runs
		stream, err := c.Ask(ctx)
		if err != nil {
			return // the adapter's next call tells why
		}
		a.work.Go(func() { // ends with the stream
			_ = a.out.Run(stream.Send)
			cancel()
		})
		defer a.out.Break(nil)
		for {
			q, err := stream.Recv()
			if err != nil || !a.take(ctx, q) {
				return
			}
		}
	})
	return a
}

// wait returns when every question has ended. The stream has been ended.
func (a *answers) wait() { a.work.Wait() }

// take begins a question; false: the adapter broke the protocol.
func (a *answers) take(ctx context.Context, q *adapterv1.Question) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q.GetForget() != nil {
		if cancel := a.open[q.GetN()]; cancel != nil {
			cancel()
		}
		return true
	}
	if a.open[q.GetN()] != nil {
		return false
	}
	if len(a.open) >= adapter.MaxAsks {
		return a.out.Send(&adapterv1.Answer{N: q.GetN(), Error: errs.ToProto(fmt.Errorf("%w: %d questions are open", handoff.ErrCapacity, len(a.open)))}) == nil
	}
	ctx, cancel := context.WithCancel(ctx)
	a.open[q.GetN()] = cancel
	a.work.Go(func() {
		defer cancel()
		r, err := a.make(ctx, q)
		if err != nil {
			r = &adapterv1.Answer{Error: errs.ToProto(err)}
		}
		r.N = q.GetN()
		a.mu.Lock()
		delete(a.open, r.N)
		a.mu.Unlock()
		_ = a.out.Send(r) // fails when the stream has ended
	})
	return true
}

// make makes the call that a question asks for.
func (a *answers) make(ctx context.Context, q *adapterv1.Question) (*adapterv1.Answer, error) {
	switch q := q.GetQuestion().(type) {
	case *adapterv1.Question_ImportRequest:
		m, err := codec.FromImport(q.ImportRequest)
		if err != nil {
			return nil, err
		}
		got, err := a.to.Import(ctx, m)
		if err != nil {
			return nil, err
		}
		p, err := codec.ToImported(got)
		return &adapterv1.Answer{Answer: &adapterv1.Answer_Imported{Imported: p}}, err
	case *adapterv1.Question_Get:
		id, err := codec.FromID(q.Get)
		if err != nil {
			return nil, err
		}
		got, err := a.to.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		p, err := control.EncodeInfo(got)
		return &adapterv1.Answer{Answer: &adapterv1.Answer_Info{Info: p}}, err
	case *adapterv1.Question_List:
		query, err := control.DecodeQuery(q.List)
		if err != nil {
			return nil, err
		}
		got, err := a.to.List(ctx, query)
		if err != nil {
			return nil, err
		}
		p, err := control.EncodePage(got)
		return &adapterv1.Answer{Answer: &adapterv1.Answer_Page{Page: p}}, err
	}
	return a.effect(ctx, q)
}

// effect makes a call that answers nothing but that it was made.
func (a *answers) effect(ctx context.Context, q *adapterv1.Question) (*adapterv1.Answer, error) {
	switch q := q.GetQuestion().(type) {
	case *adapterv1.Question_Abort:
		id, key, err := decodeOwn(q.Abort)
		if err != nil {
			return nil, err
		}
		return &adapterv1.Answer{}, a.to.Abort(ctx, id, key)
	case *adapterv1.Question_Release:
		id, key, err := decodeOwn(q.Release)
		if err != nil {
			return nil, err
		}
		return &adapterv1.Answer{}, a.to.Release(ctx, id, key)
	}
	return nil, fmt.Errorf("%w: the sidecar is of a release without this question", handoff.ErrVersion)
}
