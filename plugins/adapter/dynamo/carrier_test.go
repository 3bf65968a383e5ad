package dynamo

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

func drawManifest(t *rapid.T) handoff.Manifest {
	m := handoff.Manifest{ID: handoff.ID{Group: rapid.StringMatching(`[a-z0-9-]{1,20}`).Draw(t, "group"), Instance: handoff.Instance(rapid.Uint64().Draw(t, "instance")),
		Leader: handoff.Incarnation(rapid.Uint64().Draw(t, "leader")), N: rapid.Uint64().Draw(t, "n")},
		Label: rapid.StringN(0, 40, 80).Draw(t, "label"), Tokens: rapid.Int32Range(0, 1<<20).Draw(t, "tokens"), Position: rapid.Int32Range(0, 1<<20).Draw(t, "position"),
		WeightsEpoch: rapid.Uint64().Draw(t, "epoch"), BlockTokens: rapid.Int32Range(0, 256).Draw(t, "block")}
	copy(m.Key[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key"))
	copy(m.Model[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "model"))
	copy(m.Geometry[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "geometry"))
	if rapid.Bool().Draw(t, "resumes") {
		m.Resume = handoff.Resume{Tokens: rapid.SliceOfN(rapid.Int32Range(0, 1<<17), 1, 4).Draw(t, "sampled"), Sampler: rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "sampler"),
			Logprobs: []float32{rapid.Float32().Draw(t, "logprob"), float32(math.Inf(-1))}[:rapid.IntRange(1, 2).Draw(t, "probs")], Finished: rapid.Bool().Draw(t, "finished")}
		m.Resume.Logprobs = m.Resume.Logprobs[:min(len(m.Resume.Logprobs), len(m.Resume.Tokens))]
	}
	return m
}

// TestCarrier: a manifest comes back exactly, through either codec, and what an engine's
// own handlers put beside it is as it was.
func TestCarrier(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawManifest(t)
		own := `{"block_ids":[1,2,3],"kv_meta":{"agent_name":"a","port":9},"first_token":5}`
		b, err := Carry([]byte(own), want)
		if err != nil {
			t.Fatal(err)
		}
		var p Params
		if err := wire.JSON.Decode(b, &p); err != nil {
			t.Fatal(err)
		}
		got, ok, err := p.Carried(wire.JSON)
		if err != nil || !ok || !same(got, want) {
			t.Fatalf("%v %v\n got %+v\nwant %+v", ok, err, got, want)
		}
		delete(p, Carrier)
		if rest, err := json.Marshal(p); err != nil || !bytes.Equal(sorted(t, rest), sorted(t, []byte(own))) {
			t.Fatalf("%s, %v", rest, err)
		}
		packed, err := wire.Msgpack.Encode(FromManifest(want))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok, err := (Params{Carrier: packed}).Carried(wire.Msgpack); err != nil || !ok || !same(got, want) {
			t.Fatalf("%v %v\n got %+v\nwant %+v", ok, err, got, want)
		}
	})
}

// same compares with NaN equal to itself.
func same(a, b handoff.Manifest) bool {
	bits := func(fs []float32) (all []uint32) {
		for _, f := range fs {
			all = append(all, math.Float32bits(f))
		}
		return all
	}
	equal := reflect.DeepEqual(bits(a.Resume.Logprobs), bits(b.Resume.Logprobs))
	a.Resume.Logprobs, b.Resume.Logprobs = nil, nil
	return equal && reflect.DeepEqual(a, b)
}

func sorted(t *rapid.T, b []byte) []byte {
	var v map[string]json.RawMessage
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestCarrierThatIsNone(t *testing.T) {
	good, err := Carry(nil, handoff.Manifest{ID: handoff.ID{Group: "g", N: 1 << 63}})
	if err != nil || !strings.Contains(string(good), `"n":"9223372036854775808"`) {
		t.Fatal(string(good), err)
	}
	if b, err := Carry([]byte("null"), handoff.Manifest{}); err != nil || !json.Valid(b) {
		t.Errorf("%s, %v", b, err)
	}
	if _, err := Carry([]byte("[1]"), handoff.Manifest{}); !errors.Is(err, wire.ErrMalformed) {
		t.Error(err)
	}
	for in, want := range map[string]error{
		`{}`: nil, `{"block_ids":[1]}`: nil, `{"baton.v2":{}}`: handoff.ErrVersion, `{"baton.v2":{},"x":1}`: handoff.ErrVersion, `{"baton.v1":7}`: handoff.ErrBound,
		`{"baton.v1":{}}`: handoff.ErrBound,
		strings.Replace(string(good), `"key":"`, `"key":"f`, 1): handoff.ErrBound, strings.Replace(string(good), `"9223372036854775808"`, `"18446744073709551616"`, 1): handoff.ErrBound,
		strings.Replace(string(good), `"finished"`, `"sampler":"%","finished"`, 1): handoff.ErrBound, strings.Replace(string(good), `"finished"`, `"logprobs":"AAA=","finished"`, 1): handoff.ErrBound,
		strings.Replace(string(good), `"group":"g"`, `"group":"`+strings.Repeat("g", 300)+`"`, 1): handoff.ErrBound,
	} {
		var p Params
		if err := wire.JSON.Decode([]byte(in), &p); err != nil {
			t.Fatal(in, err)
		}
		_, ok, err := p.Carried(wire.JSON)
		if !errors.Is(err, want) || want != nil && ok {
			t.Errorf("%.90s: %v, %v, want %v", in, ok, err, want)
		}
	}
}

// FuzzParams: no disaggregated_params breaks a reader, and what is taken is within bounds.
func FuzzParams(f *testing.F) {
	good, err := Carry([]byte(`{"x":1}`), handoff.Manifest{ID: handoff.ID{Group: "g"}, Resume: handoff.Resume{Tokens: []int32{1}, Logprobs: []float32{1}, Sampler: []byte("s")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"baton.v2":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, c := range []wire.Codec{wire.JSON, wire.Msgpack} {
			var p Params
			if c.Decode(b, &p) != nil {
				continue
			}
			if m, ok, err := p.Carried(c); ok && err == nil {
				if _, err := Carry(nil, m); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
