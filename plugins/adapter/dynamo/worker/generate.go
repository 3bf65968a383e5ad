package worker

import (
	"context"
	"errors"

	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Output is one item: tokens, and why the answer ended.
type Output struct {
	Tokens   []int32       `json:"token_ids"`
	Logprobs []float32     `json:"log_probs,omitempty"`
	Finish   string        `json:"finish_reason,omitempty"` // length, eos, stop
	Params   dynamo.Params `json:"disaggregated_params,omitempty"`
}

// prefill runs a prompt. The hand-off is given up unless the caller has the whole answer.
func (w *Worker) prefill(ctx context.Context, c plane.Call, out *plane.Stream) error {
	j, _, err := w.job(c)
	if err != nil {
		return err
	}
	// The limit is decode's: routers send 1 here, which would end the request.
	j.MaxNew = 2
	m, token, err := w.engine.Prefill(ctx, j)
	if err != nil {
		return err
	}
	w.meter.asked.Inc()
	b, err := c.Codec.Encode(dynamo.FromManifest(m))
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = out.Send(Output{Tokens: []int32{token}, Finish: "length", Params: dynamo.Params{dynamo.Carrier: b}})
	}
	if err != nil {
		w.giveUp(m)
	}
	return err
}

// decode goes on where prefill ended, or runs the whole request. A hand-off that it is given is
// used up or given up, also when the request is refused.
func (w *Worker) decode(ctx context.Context, c plane.Call, out *plane.Stream) error {
	j, from, refused := w.job(c)
	var m *handoff.Manifest
	if from != nil {
		got, ok, err := from.Params.Carried(c.Codec)
		if err != nil {
			return errors.Join(refused, err)
		}
		if ok {
			m = &got
			w.meter.asked.Inc()
		}
	}
	err := refused
	if err == nil {
		err = w.stream(ctx, j, m, out)
	}
	if err != nil && m != nil {
		w.giveUp(*m) // also when its import has used it up: then it is gone
	}
	return err
}

// stream has the engine run j and sends what it tells.
func (w *Worker) stream(ctx context.Context, j Job, m *handoff.Manifest, out *plane.Stream) error {
	reason, err := w.engine.Decode(ctx, j, m, func(token int32, logprob *float32) error {
		o := Output{Tokens: []int32{token}}
		if logprob != nil {
			o.Logprobs = []float32{*logprob}
		}
		return out.Send(o)
	})
	if err == nil {
		err = out.Send(Output{Tokens: []int32{}, Finish: reason})
	}
	if why := context.Cause(ctx); err != nil && why != nil && !errors.Is(err, why) {
		err = errors.Join(why, err)
	}
	return err
}

// target is where an instance is called over TCP.
func target(i directory.Instance) (plane.Target, bool) {
	codec, err := wire.ParseCodec(i.Codec)
	addr, path, ok := i.Called()
	return plane.Target{Address: addr, Path: path, Codec: codec}, ok && err == nil
}
