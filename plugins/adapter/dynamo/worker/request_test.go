package worker

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// frontendRequest is what Dynamo's frontend sends; what users left open is null.
const frontendRequest = `{"model": "tiny", "token_ids": [72, 101], "stop_conditions": {"max_tokens": 9, "stop": ["!"], "stop_token_ids": null,
	"stop_token_ids_visible": [5], "stop_token_ids_hidden": [257, 5], "min_tokens": 3, "ignore_eos": null, "max_thinking_tokens": null},
	"sampling_options": {"n": null, "best_of": null, "presence_penalty": 0.0, "frequency_penalty": null, "repetition_penalty": 1.0, "temperature": 0.5,
	"top_p": null, "top_k": -1, "min_p": null, "use_beam_search": null, "length_penalty": null, "seed": 7, "include_stop_str_in_output": null, "guided_decoding": null},
	"output_options": {"logprobs": 1, "prompt_logprobs": null, "skip_special_tokens": null}, "eos_token_ids": [257], "annotations": [], "routing": {"dp_rank": 0},
	"prefill_result": {"disaggregated_params": {"other": {"x": 1}}}}`

func TestJob(t *testing.T) {
	w := &Worker{cfg: Config{MaxNew: 4}}
	j, from, err := w.job(plane.Call{ID: "a", Codec: wire.JSON, Body: []byte(frontendRequest)})
	if err != nil || from == nil || len(from.Params) != 1 || !strings.HasPrefix(j.Label, "a-") {
		t.Fatalf("%+v %+v %v", j, from, err)
	}
	var q Request
	if err := wire.JSON.Decode([]byte(frontendRequest), &q); err != nil {
		t.Fatal(err)
	}
	want := Job{Label: j.Label, Tokens: []int32{72, 101}, MaxNew: 9, MinNew: 3, Stops: []int32{5, 257}, Logprobs: true, Sampling: q.Sampling}
	if !reflect.DeepEqual(j, want) || *j.Sampling.Seed != 7 {
		t.Errorf("%+v, want %+v", j, want)
	}
	// The same in msgpack, nulls included.
	b := []byte{0x83}
	for _, part := range []string{"\xa9token_ids\x91\x01", "\xafstop_conditions\x82\xaaignore_eos\xc3\xaestop_token_ids\xc0", "\xb0sampling_options\x82\xa1n\xc0\xafguided_decoding\xc0"} {
		b = append(b, part...)
	}
	if j, _, err = w.job(plane.Call{Codec: wire.Msgpack, Body: b}); err != nil || !j.IgnoreEOS || j.MaxNew != 4 || j.Logprobs || j.Stops != nil {
		t.Errorf("%+v %v", j, err)
	}
}

// TestRefused: what is asked and not done is refused with its name, and the hand-off that
// came with it is given up.
func TestRefused(t *testing.T) {
	two, tenth, yes, minus := int32(2), 0.1, true, int32(-1)
	many := make([]int32, maxStops+1)
	for i := range many {
		many[i] = int32(i)
	}
	for text, q := range map[string]Request{
		"best_of":          {Sampling: Sampling{BestOf: &two}},
		"min_p":            {Sampling: Sampling{MinP: &tenth}},
		"presence_penalty": {Sampling: Sampling{Repetition: &tenth}},
		"use_beam_search":  {Sampling: Sampling{Beam: &yes}},
		"guided_decoding":  {Sampling: Sampling{Guided: &Guided{}}},
		"min_tokens":       {Stop: StopConditions{MinTokens: &minus}},
		"17 stop tokens":   {Stop: StopConditions{Hidden: many}},
		"logprobs":         {Output: OutputOptions{Logprobs: &two}},
		"prompt_logprobs":  {Output: OutputOptions{Prompt: &two}},
	} {
		t.Run(text, func(t *testing.T) {
			r := newRig(t, discovery.Decode, true)
			q.Tokens, q.Prefill = []int32{1}, carrier(t, dynamo.Carrier)
			_, _, err := r.rest(r.call(q))
			if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Kind() != wire.InvalidArgument || !strings.Contains(f.Message, text) {
				t.Errorf("%v, want %s", err, text)
			}
			r.wantReleased()
		})
	}
}
