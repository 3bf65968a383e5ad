package worker

import (
	"context"
	"errors"
	"sync"

	"github.com/batonkv/baton/sidecar/handoff"
)

// watched is an engine that others see hang: it takes no call then, and what runs ends when
// there is no hope left. It tells when the engine refused a call because it drains.
type watched struct {
	engine  Engine
	refused chan struct{} // holds one token

	mu   sync.Mutex // guards:
	hung bool
	lost context.Context // of the calls that run; its end is theirs
	end  context.CancelCauseFunc
}

func watch(e Engine) *watched {
	w := &watched{engine: e, refused: make(chan struct{}, 1)}
	w.lost, w.end = context.WithCancelCause(context.Background())
	return w
}

func (w *watched) hang() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hung = true
}

func (w *watched) answers() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hung = false
}

// lose ends what runs. Calls that come later run.
func (w *watched) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end(hangs.why)
	w.lost, w.end = context.WithCancelCause(context.Background())
}

// begin is ctx of a call that may begin, which ends with leave.
func (w *watched) begin(ctx context.Context) (call context.Context, leave func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hung {
		return nil, nil, hangs.why
	}
	call, end := context.WithCancelCause(ctx)
	lost := w.lost
	stop := context.AfterFunc(lost, func() { end(context.Cause(lost)) })
	return call, func() { stop(); end(nil) }, nil
}

// hear is how a call ended that ended with err.
func (w *watched) hear(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), hangs.why) {
		return hangs.why
	}
	if errors.Is(err, handoff.ErrDraining) {
		select {
		case w.refused <- struct{}{}:
		default:
		}
	}
	return err
}

// Prefill implements Engine.
func (w *watched) Prefill(ctx context.Context, j Job) (handoff.Manifest, int32, error) {
	ctx, leave, err := w.begin(ctx)
	if err != nil {
		return handoff.Manifest{}, 0, err
	}
	defer leave()
	m, first, err := w.engine.Prefill(ctx, j)
	return m, first, w.hear(ctx, err)
}

// Decode implements Engine.
func (w *watched) Decode(ctx context.Context, j Job, m *handoff.Manifest, each func(int32, *float32) error) (string, error) {
	ctx, leave, err := w.begin(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	reason, err := w.engine.Decode(ctx, j, m, each)
	return reason, w.hear(ctx, err)
}
