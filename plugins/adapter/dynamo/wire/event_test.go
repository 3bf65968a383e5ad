package wire

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"testing"
)

// published is what Dynamo's own publisher sent over NATS.
func published(t testing.TB) (all []struct{ Name, Subject, Hex string }) {
	b, err := os.ReadFile("testdata/kv_events_nats.json")
	if err = errors.Join(err, json.Unmarshal(b, &all)); err != nil || len(all) == 0 {
		t.Fatal(len(all), err)
	}
	return all
}

// TestEventGoldens reads every event and writes the same bytes again.
func TestEventGoldens(t *testing.T) {
	for _, g := range published(t) {
		e, err := DecodeEvent(unhex(t, g.Hex))
		if err != nil {
			t.Errorf("%s: %v", g.Name, err)
			continue
		}
		b, err := e.Encode()
		if err != nil || hex.EncodeToString(b) != g.Hex {
			t.Errorf("%s: %v\n got %x\nwant %s", g.Name, err, b, g.Hex)
		}
		if err := Check(e.Payload); err != nil || e.Topic != "kv-events" {
			t.Errorf("%s: topic %s: %v", g.Name, e.Topic, err)
		}
	}
}

// FuzzEvent: no event breaks a reader.
func FuzzEvent(f *testing.F) {
	for _, g := range published(f) {
		f.Add(unhex(f, g.Hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := DecodeEvent(b); err == nil {
			if _, err := e.Encode(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
