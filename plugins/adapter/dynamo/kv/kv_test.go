package kv

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// read decodes a capture, which package wire keeps.
func read(t testing.TB, name string, into any) {
	b, err := os.ReadFile("../wire/testdata/" + name)
	if err = errors.Join(err, json.Unmarshal(b, into)); err != nil {
		t.Fatal(name, err)
	}
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestHashes: what Dynamo computes.
func TestHashes(t *testing.T) {
	type list struct {
		Name   string
		Tokens []uint32
		Block  int `json:"block_size"`
		LoRA   string
		Dynamo []string
		Seq    []string `json:"seq_hashes"`
	}
	var all struct {
		Basic []list
		Extra []struct {
			list
			LoRA string `json:"lora_name"`
		}
	}
	read(t, "hashes.json", &all)
	lists := all.Basic
	for _, x := range all.Extra {
		if x.Name == "lora" {
			x.list.LoRA = x.LoRA
			lists = append(lists, x.list)
		}
	}
	if len(lists) < 7 {
		t.Fatal(lists)
	}
	for _, l := range lists {
		var sequence uint64
		for n, want := range l.Dynamo {
			var tokens []int32
			for _, v := range l.Tokens[n*l.Block : (n+1)*l.Block] {
				tokens = append(tokens, int32(v))
			}
			h := TokensHash(SeedOf(l.LoRA), tokens)
			if strconv.FormatUint(h, 10) != want {
				t.Errorf("%v block %d: %d, want %s", l, n, h, want)
			}
			if sequence = SequenceHash(sequence, h); n == 0 {
				sequence = h
			}
			if len(l.Seq) > 0 && strconv.FormatUint(sequence, 10) != l.Seq[n] {
				t.Errorf("%v block %d: sequence %d, want %s", l, n, sequence, l.Seq[n])
			}
		}
	}
}

// published is what Dynamo's own publisher sent.
func published(t testing.TB) (all []struct{ Name, Hex string }) {
	read(t, "kv_events_nats.json", &all)
	return all
}

// TestEventGoldens reads every event of Dynamo's and writes the same bytes, and as JSON.
func TestEventGoldens(t *testing.T) {
	for _, g := range published(t) {
		e, err := wire.DecodeEvent(unhex(t, g.Hex))
		if err != nil {
			t.Fatal(err)
		}
		events, err := DecodeBatch(e.Payload)
		if err != nil || len(events) == 0 {
			t.Fatal(g.Name, err)
		}
		again, err := EncodeBatch(events)
		if err != nil || !bytes.Equal(again, e.Payload) {
			t.Errorf("%s: %v\n got %x\nwant %x", g.Name, err, again, e.Payload)
		}
		text, err := wire.JSON.Encode(events)
		var back []RouterEvent
		if err = errors.Join(err, wire.JSON.Decode(text, &back)); err != nil || !same(back, events) {
			t.Errorf("%s: %v\n%s\n%+v, want %+v", g.Name, err, text, back, events)
		}
	}
	b, err := EncodeBatch([]RouterEvent{{Worker: 1, Tier: Device, Domain: ByWorker, Event: CacheEvent{ID: 2}}})
	if err != nil || !bytes.Contains(b, []byte("\xa4data\xa7cleared")) {
		t.Errorf("%v: %q", err, b)
	}
	for _, bad := range []string{`{}`, `"x"`, `{"stored":null}`, `{"stored":{},"removed":{}}`, `3`} {
		if err := new(Data).UnmarshalJSON([]byte(bad)); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// same compares what is decoded, by its JSON: null and nothing are one.
func same(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// TestZMQGolden: what Dynamo's publisher sends over ZMQ, frame by frame, and its record.
func TestZMQGolden(t *testing.T) {
	var g struct {
		Channel  json.RawMessage
		Messages [][]string
	}
	read(t, "kv_events_zmq.json", &g)
	e := directory.Endpoint{Namespace: "dynamo", Component: "pl", Name: "generate"}
	r, err := directory.NewZMQChannel(e, Topic, 537288731455324, "192.0.2.2:35671").Record()
	var want bytes.Buffer
	if err = errors.Join(err, json.Compact(&want, g.Channel)); err != nil || want.String() != string(r.Value) {
		t.Errorf("%v: %s, want %s", err, r.Value, want.String())
	}
	for _, m := range g.Messages {
		message := unhex(t, m[3])[5:]
		got := framesOf(537288731455324, 0, message)
		for n, f := range got {
			if hex.EncodeToString(f) != m[n] {
				t.Errorf("frame %d: %x, want %s", n, f, m[n])
			}
		}
	}
}

// TestRecoveryGolden: what a router asks, and what Dynamo's own worker answers.
func TestRecoveryGolden(t *testing.T) {
	var g struct {
		Steps []struct{ Dir, Hex string }
	}
	read(t, "tcp_kvrecovery_00_recovery_msgpack.json", &g)
	f, err := wire.ReadFrame(bytes.NewReader(unhex(t, g.Steps[0].Hex)), func(int64) bool { return true })
	var q Query
	if err = errors.Join(err, wire.Msgpack.Decode(f.Body, &q)); err != nil || !q.KnowsFails || q.Kind != recovery || q.Start != nil {
		t.Fatalf("%+v, %v", q, err)
	}
	b, err := wire.Msgpack.Encode(q)
	if err != nil || !bytes.Equal(b, f.Body) {
		t.Errorf("%v: %x, want %x", err, b, f.Body)
	}
	whole := unhex(t, g.Steps[4].Hex)
	m, err := wire.ReadTwoPart(bytes.NewReader(whole))
	var item wire.Item
	var a Answer
	if err = errors.Join(err, wire.Msgpack.Decode(m.Body, &item), wire.Msgpack.Decode(item.Data, &a)); err != nil {
		t.Fatal(err)
	}
	b, err = wire.Msgpack.Encode(a)
	if err != nil || !bytes.Equal(b, item.Data) {
		t.Errorf("%v: %x, want %x", err, b, item.Data)
	}
	// The same of our own.
	s := &Source{worker: q.Worker, log: NewLog()}
	s.log.Tell(chain(0, 2))
	mine := s.recover(q)
	for n := range a.TreeDump.Events { // blocks have other names there
		for i := range a.TreeDump.Events[n].Event.Data.Stored.Blocks {
			a.TreeDump.Events[n].Event.Data.Stored.Blocks[i].Hash = mine.TreeDump.Events[n].Event.Data.Stored.Blocks[i].Hash
		}
	}
	if !reflect.DeepEqual(mine, a) {
		t.Errorf("%+v, want %+v", mine, a)
	}
}

// FuzzBatch: no payload breaks a reader.
func FuzzBatch(f *testing.F) {
	for _, g := range published(f) {
		e, err := wire.DecodeEvent(unhex(f, g.Hex))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(e.Payload)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if events, err := DecodeBatch(b); err == nil {
			if _, err := EncodeBatch(events); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzQuery: no query breaks a source.
func FuzzQuery(f *testing.F) {
	f.Add([]byte(`{"worker_id":1,"dp_rank":0,"start_event_id":1,"end_event_id":null}`))
	f.Add([]byte(`{"worker_id":1,"dp_rank":0,"start_event_id":18446744073709551615,"end_event_id":0}`))
	s := &Source{worker: 1, log: NewLog()}
	s.log.Tell(chain(0, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		var q Query
		if wire.JSON.Decode(b, &q) != nil {
			return
		}
		text, err := wire.JSON.Encode(s.recover(q))
		if err != nil || strings.Count(string(text), `":{"`) == 0 && !strings.Contains(string(text), "Error") {
			t.Fatalf("%s, %v", text, err)
		}
	})
}
