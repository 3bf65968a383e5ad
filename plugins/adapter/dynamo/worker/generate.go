package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Request is what Dynamo's preprocessor asks of a worker: what of it counts here.
type Request struct {
	Tokens   []int32        `json:"token_ids"`
	Stop     StopConditions `json:"stop_conditions"`
	Sampling Sampling       `json:"sampling_options"`
	Prefill  *PrefillResult `json:"prefill_result,omitempty"`
}

// StopConditions end a request. Stop words are the frontend's.
type StopConditions struct {
	MaxTokens *int32 `json:"max_tokens,omitempty"` // nil: the worker's own limit
}

// Sampling is how tokens are chosen; what is nil is the engine's own. Python's floats have 64
// bits in msgpack.
type Sampling struct {
	N           *int32   `json:"n,omitempty"`
	Temperature *float64 `json:"temperature,omitempty"`
	TopK        *int32   `json:"top_k,omitempty"`
	TopP        *float64 `json:"top_p,omitempty"`
	Seed        *int64   `json:"seed,omitempty"`
}

// PrefillResult is what the prefill worker answered.
type PrefillResult struct {
	Params dynamo.Params `json:"disaggregated_params"`
}

// Output is one item: tokens, and why the answer ended.
type Output struct {
	Tokens   []int32       `json:"token_ids"`
	Logprobs []float32     `json:"log_probs,omitempty"`
	Finish   string        `json:"finish_reason,omitempty"` // length, eos, stop
	Params   dynamo.Params `json:"disaggregated_params,omitempty"`
}

// Limits of a request.
const (
	maxTokens = 1 << 20
	maxNew    = 1 << 12
)

// job reads a request.
func (w *Worker) job(c plane.Call) (Job, *PrefillResult, error) {
	var q Request
	if err := c.Decode(&q); err != nil {
		return Job{}, nil, err
	}
	j := Job{Label: label(c), Tokens: q.Tokens, MaxNew: w.cfg.MaxNew, Sampling: q.Sampling}
	if q.Stop.MaxTokens != nil {
		j.MaxNew = *q.Stop.MaxTokens
	}
	var why string
	switch {
	case len(q.Tokens) == 0 || len(q.Tokens) > maxTokens:
		why = fmt.Sprintf("token_ids: %d: want 1 to %d", len(q.Tokens), maxTokens)
	case j.MaxNew < 1 || j.MaxNew > maxNew:
		why = fmt.Sprintf("stop_conditions.max_tokens: %d: want 1 to %d", j.MaxNew, maxNew)
	case q.Sampling.N != nil && *q.Sampling.N != 1:
		why = fmt.Sprintf("sampling_options.n: %d: one answer for each call", *q.Sampling.N)
	}
	if why != "" {
		return j, nil, plane.Fault(wire.InvalidArgument, "%s", why)
	}
	return j, q.Prefill, nil
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

// decode goes on where prefill ended, or runs the whole request.
func (w *Worker) decode(ctx context.Context, c plane.Call, out *plane.Stream) error {
	j, from, err := w.job(c)
	if err != nil {
		return err
	}
	each := func(token int32, logprob *float32) error {
		o := Output{Tokens: []int32{token}}
		if logprob != nil {
			o.Logprobs = []float32{*logprob}
		}
		return out.Send(o)
	}
	var m *handoff.Manifest
	if from != nil {
		got, ok, err := from.Params.Carried(c.Codec)
		if err != nil {
			return err
		}
		if ok {
			m = &got
		}
	}
	reason, err := w.engine.Decode(ctx, j, m, each)
	if err == nil {
		err = out.Send(Output{Tokens: []int32{}, Finish: reason})
	}
	if err != nil && m != nil {
		w.giveUp(*m) // also when its import has used it up: then it is gone
	}
	if why := context.Cause(ctx); err != nil && why != nil {
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
