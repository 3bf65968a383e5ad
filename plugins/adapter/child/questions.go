package child

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	"github.com/batonkv/baton/plugins/adapter"
	adapterv1 "github.com/batonkv/baton/proto/adapter/v1"
	"github.com/batonkv/baton/proto/codec"
	controlv1 "github.com/batonkv/baton/proto/control/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// questions are what an adapter asks its sidecar, on the stream that the sidecar opened.
// They implement adapter.Calls.
type questions struct {
	room chan struct{}                   // holds a place for each question
	out  *pump.Pump[*adapterv1.Question] // a place holds its question and its Forget
	over chan struct{}                   // closed when the stream has ended

	mu    sync.Mutex // guards:
	begun bool
	last  uint64
	open  map[uint64]chan *adapterv1.Answer
}

func newQuestions() *questions {
	return &questions{room: make(chan struct{}, adapter.MaxAsks), out: pump.New[*adapterv1.Question](2 * adapter.MaxAsks),
		over: make(chan struct{}), open: map[uint64]chan *adapterv1.Answer{}}
}

// serve writes questions and takes answers until the stream ends. There is one in a life.
func (q *questions) serve(stream grpc.BidiStreamingServer[adapterv1.Answer, adapterv1.Question]) error {
	q.mu.Lock()
	again := q.begun
	q.begun = true
	q.mu.Unlock()
	if again {
		return errs.ToStatus(fmt.Errorf("%w: ask was opened before", handoff.ErrOrder))
	}
	defer close(q.over)
	go func() { _ = q.out.Run(stream.Send) }() // ends with the stream
	defer q.out.Break(nil)
	for {
		a, err := stream.Recv()
		if err != nil {
			return nil // the sidecar ended it
		}
		q.mu.Lock()
		to := q.open[a.GetN()]
		delete(q.open, a.GetN())
		q.mu.Unlock()
		if to != nil { // else it was forgotten
			to <- a
		}
	}
}

// ask sends a question and waits for its answer. begun says whether it may have had an
// effect.
func (q *questions) ask(ctx context.Context, p *adapterv1.Question) (_ *adapterv1.Answer, begun bool, err error) {
	select {
	case q.room <- struct{}{}:
		defer func() { <-q.room }()
	default:
		return nil, false, fmt.Errorf("%w: %d questions are open: ask again when one was answered", handoff.ErrCapacity, adapter.MaxAsks)
	}
	to := make(chan *adapterv1.Answer, 1)
	q.mu.Lock()
	q.last++
	p.N = q.last
	q.open[p.N] = to
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.open, p.N)
	}()
	if err := q.out.Send(p); err != nil {
		return nil, false, fmt.Errorf("%w: %w", handoff.ErrHost, err)
	}
	select {
	case a := <-to:
		return a, true, errs.FromProto(a.GetError())
	case <-ctx.Done():
		_ = q.out.Send(&adapterv1.Question{N: p.N, Question: &adapterv1.Question_Forget{Forget: &adapterv1.Forget{}}})
		return nil, true, ctx.Err()
	case <-q.over:
		return nil, true, fmt.Errorf("%w: the sidecar ended the life of this adapter", handoff.ErrHost)
	}
}

// change asks for what changes something: without an answer that is in doubt.
func (q *questions) change(ctx context.Context, p *adapterv1.Question) (*adapterv1.Answer, error) {
	a, begun, err := q.ask(ctx, p)
	if err != nil && a == nil && begun {
		return nil, fmt.Errorf("%w: %w", handoff.ErrInDoubt, err)
	}
	return a, err
}

func (q *questions) Import(ctx context.Context, m handoff.Import) (handoff.Imported, error) {
	p, err := codec.ToImport(m)
	if err != nil {
		return handoff.Imported{}, err
	}
	a, err := q.change(ctx, &adapterv1.Question{Question: &adapterv1.Question_ImportRequest{ImportRequest: p}})
	if err != nil {
		return handoff.Imported{}, err
	}
	return codec.FromImported(a.GetImported())
}

func (q *questions) Get(ctx context.Context, id handoff.ID) (control.Info, error) {
	p, err := codec.ToID(id)
	if err != nil {
		return control.Info{}, err
	}
	a, _, err := q.ask(ctx, &adapterv1.Question{Question: &adapterv1.Question_Get{Get: p}})
	if err != nil {
		return control.Info{}, err
	}
	return control.DecodeInfo(a.GetInfo())
}

func (q *questions) List(ctx context.Context, query control.Query) (control.Page, error) {
	p, err := control.EncodeQuery(query)
	if err != nil {
		return control.Page{}, err
	}
	a, _, err := q.ask(ctx, &adapterv1.Question{Question: &adapterv1.Question_List{List: p}})
	if err != nil {
		return control.Page{}, err
	}
	return control.DecodePage(a.GetPage())
}

func (q *questions) Abort(ctx context.Context, id handoff.ID, key handoff.Key) error {
	p, err := codec.ToID(id)
	if err != nil {
		return err
	}
	_, err = q.change(ctx, &adapterv1.Question{Question: &adapterv1.Question_Abort{Abort: &controlv1.AbortRequest{Id: p, Key: key[:]}}})
	return err
}

func (q *questions) Release(ctx context.Context, id handoff.ID, key handoff.Key) error {
	p, err := encodeRelease(id, key)
	if err != nil {
		return err
	}
	_, err = q.change(ctx, &adapterv1.Question{Question: &adapterv1.Question_Release{Release: p}})
	return err
}
