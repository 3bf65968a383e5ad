package directory

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

// golden is what the published wheels, and clients that they accept, write.
type golden struct {
	Name, Key string
	Text      string `json:"value_text"`
}

func goldens(t testing.TB) map[string]golden {
	b, err := os.ReadFile("../wire/testdata/discovery_records.json")
	var all []golden
	if err = errors.Join(err, json.Unmarshal(b, &all)); err != nil {
		t.Fatal(err)
	}
	by := map[string]golden{}
	for _, g := range all {
		by[g.Name] = g
	}
	return by
}

// again decodes text as T and gives the record that T makes of it.
func again[T interface{ Record() (Record, error) }](t *testing.T, text string) Record {
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	r, err := v.Record()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestGoldens reads every record of Dynamo and writes the same bytes under the same key.
func TestGoldens(t *testing.T) {
	by := goldens(t)
	for name, make := range map[string]func(*testing.T, string) Record{
		"instance_161": again[Instance], "instance_151": again[Instance], "instance_131": again[Instance], "instance_nats_161": again[Instance],
		"mdc_161": again[Model], "event_channel_nats_161": again[Channel], "event_channel_zmq_161": again[Channel],
		"event_source_live_161": again[Source], "event_source_recoverable_161": again[Source],
	} {
		g, ok := by[name]
		if !ok {
			t.Errorf("no %s", name)
			continue
		}
		r := make(t, g.Text)
		if strings.Contains(g.Key, "/") && !strings.Contains(g.Key, "(") && r.Key != g.Key {
			t.Errorf("%s: key %s, want %s", name, r.Key, g.Key)
		}
		if !bytes.Equal(r.Value, []byte(g.Text)) {
			t.Errorf("%s:\n got %s\nwant %s", name, r.Value, g.Text)
		}
	}
}

// TestMadeAsDynamoMakes: what the constructors make of the same words is what Dynamo writes.
func TestMadeAsDynamoMakes(t *testing.T) {
	by := goldens(t)
	var recoverable Source
	if err := json.Unmarshal([]byte(by["event_source_recoverable_161"].Text), &recoverable); err != nil {
		t.Fatal(err)
	}
	e := Endpoint{"dynamo", "kvl", "generate"}
	target := NewInstance(Endpoint{"dynamo", "kvl", "worker_kv_query_source_74f4217e148fe"}, recoverable.Metadata.Worker.ID, "127.0.0.1:46279", "msgpack")
	target.Device = "cuda"
	r, err := NewSource(e, "kv-events", recoverable.ID, recoverable.Metadata.Worker, &target).Record()
	if g := by["event_source_recoverable_161"]; err != nil || r.Key != g.Key || string(r.Value) != g.Text {
		t.Errorf("%v\n got %s %s\nwant %s %s", err, r.Key, r.Value, g.Key, g.Text)
	}
	var ch Channel
	if err := json.Unmarshal([]byte(by["event_channel_nats_161"].Text), &ch); err != nil {
		t.Fatal(err)
	}
	r, err = NewChannel(Endpoint{"dynamo", "kvb", "generate"}, "kv-events", ch.ID).Record()
	if g := by["event_channel_nats_161"]; err != nil || r.Key != g.Key || string(r.Value) != g.Text {
		t.Errorf("%v\n got %s %s\nwant %s %s", err, r.Key, r.Value, g.Key, g.Text)
	}
}

func TestNamesAreCheckedBeforeWriting(t *testing.T) {
	for _, e := range []Endpoint{{"dynamo", "Baton", "handoff"}, {"dynamo", "baton", ""}, {"", "baton", "handoff"}, {"a..b", "baton", "handoff"},
		{"dynamo", "baton/x", "handoff"}, {"dynamo", "baton", strings.Repeat("x", 64)}, {"dynamo", "bat on", "e"}, {strings.Repeat("a.", 200) + "a", "c", "e"}} {
		if err := e.Check(); !errors.Is(err, ErrName) {
			t.Errorf("%v: %v", e, err)
		}
		if _, err := NewInstance(e, 1, "127.0.0.1:1", "json").Record(); !errors.Is(err, ErrName) {
			t.Errorf("%v: %v", e, err)
		}
	}
	if err := (Endpoint{"prod.team-a", "baton", "hand_off"}).Check(); err != nil {
		t.Error(err)
	}
}

// FuzzRecords: no record of anybody breaks a reader.
func FuzzRecords(f *testing.F) {
	for _, g := range goldens(f) {
		f.Add([]byte(g.Text))
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		var i Instance
		if json.Unmarshal(b, &i) == nil {
			_, _, _ = i.Called()
			_, _ = i.Record()
		}
		var s Source
		if json.Unmarshal(b, &s) == nil {
			_, _ = s.Record()
		}
	})
}
