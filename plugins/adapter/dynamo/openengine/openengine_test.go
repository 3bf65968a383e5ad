package openengine

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

var manifest = handoff.Manifest{ID: handoff.ID{Group: "p", Instance: 1 << 60, Leader: 1 << 61, N: 5}, Key: handoff.Key{1, 2}, Label: "r1", Tokens: 3,
	Position: 3, WeightsEpoch: 1<<53 + 1, BlockTokens: 16, Resume: handoff.Resume{Tokens: []int32{9}, Logprobs: []float32{-0.5}}}

// messages are bytes of an encoder that was made of the published descriptors of openengine.v1:
// PrefillReady and KvOptions, with a field beside the carrier.
func messages(t testing.TB) map[string][]byte {
	b, err := os.ReadFile("testdata/messages.json")
	if err != nil {
		t.Fatal(err)
	}
	var text map[string]string
	if err := json.Unmarshal(b, &text); err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for name, s := range text {
		if all[name], err = hex.DecodeString(s); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestPublishedMessages: what others encode is read, and what is written here is what they
// would have written.
func TestPublishedMessages(t *testing.T) {
	all := messages(t)
	for name, want := range map[string]struct {
		has, ours bool
		err       error
	}{"ready": {true, true, nil}, "kv_options": {true, true, nil}, "rank": {true, false, handoff.ErrBound}, "other": {true, false, nil}, "whole": {}} {
		s, has, err := DecodeReady(all[name])
		if err != nil || has != want.has {
			t.Errorf("%s: %v, %v", name, has, err)
			continue
		}
		m, ours, err := s.Manifest()
		if ours != want.ours || !errors.Is(err, want.err) || ours && !reflect.DeepEqual(m, manifest) {
			t.Errorf("%s: %+v, %v, %v", name, m, ours, err)
		}
	}
	s, err := FromManifest(manifest)
	if err != nil {
		t.Fatal(err)
	}
	s.Attributes["own"] = wire.Raw(`[1,true,null]`)
	if b, err := AppendReady(nil, s); err != nil || !bytes.Equal(b, all["ready"]) {
		t.Errorf("%x, %v, want %x", b, err, all["ready"])
	}
}

// TestNumbersKeepTheirBits: a Struct has doubles alone, and a manifest comes through one exactly.
func TestNumbersKeepTheirBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := manifest
		m.ID.N, m.WeightsEpoch = rapid.Uint64().Draw(t, "n"), rapid.Uint64().Draw(t, "epoch")
		m.ID.Leader = handoff.Incarnation(rapid.Uint64().Draw(t, "leader"))
		m.Tokens = rapid.Int32Range(0, 1<<20).Draw(t, "tokens")
		m.Label = rapid.StringN(0, 40, 80).Draw(t, "label")
		s, err := FromManifest(m)
		if err != nil {
			t.Fatal(err)
		}
		b, err := AppendReady(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		s, _, err = DecodeReady(b)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok, err := s.Manifest(); err != nil || !ok || !reflect.DeepEqual(got, m) {
			t.Fatalf("%+v, %v, %v, want %+v", got, ok, err, m)
		}
	})
}

// TestForeignSessions: what Baton does not move is nobody's fault; what says that it does and
// is not right is refused.
func TestForeignSessions(t *testing.T) {
	good, err := FromManifest(manifest)
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]struct {
		change func(*Session)
		want   error
	}{
		"another backend":  {func(s *Session) { s.Backend = "nixl" }, nil},
		"no carrier":       {func(s *Session) { s.Attributes = nil }, handoff.ErrBound},
		"a later version":  {func(s *Session) { s.Attributes = dynamo.Params{"baton.v9": wire.Raw("{}")} }, handoff.ErrVersion},
		"another's id":     {func(s *Session) { s.ID = "q@1.1" }, handoff.ErrBound},
		"a broken carrier": {func(s *Session) { s.Attributes = dynamo.Params{dynamo.Carrier: wire.Raw(`{"id":1}`)} }, handoff.ErrBound},
	} {
		s := good
		k.change(&s)
		if _, ok, err := s.Manifest(); ok || !errors.Is(err, k.want) {
			t.Errorf("%s: %v, %v, want %v", name, ok, err, k.want)
		}
	}
	for name, b := range map[string][]byte{"cut": messages(t)["ready"][:40], "large": make([]byte, maxSession+1), "long id": {0x0a, 0x83, 0x10, 0x0a, 0x80, 0x10},
		"tag": {0xff}, "attributes": append([]byte{0x0a, 12, 0x12, 5}, "baton\x2a\x03abc"...)} {
		if _, ok, err := DecodeReady(b); ok || !errors.Is(err, handoff.ErrBound) {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	if _, err := AppendSession(nil, Session{Attributes: dynamo.Params{"x": wire.Raw(strings.Repeat("[", 5))}}); err == nil {
		t.Error("attributes that are no JSON are written")
	}
}

func TestCodes(t *testing.T) {
	for err, want := range map[error]Code{handoff.ErrGone: SessionNotFound, handoff.ErrTransfer: TransferFailed, handoff.ErrDraining: Draining,
		handoff.ErrRole: RoleMismatch, handoff.ErrInDoubt: Internal, handoff.ErrTaken: DuplicateRequest} {
		if c, again := CodeOf(fmt.Errorf("deep: %w", err)); c != want || again != (want == Draining) {
			t.Errorf("%v: %d, %v", err, c, again)
		}
	}
}

// FuzzSession: whatever comes is read or refused, and what is read is written again as it was.
func FuzzSession(f *testing.F) {
	for _, b := range messages(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok, err := DecodeReady(b)
		if err != nil || !ok || s.Backend != Backend {
			return
		}
		_, _, _ = s.Manifest()
		again, err := AppendReady(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := DecodeReady(again); err != nil || !reflect.DeepEqual(got, s) {
			t.Fatalf("%+v, %v, was %+v", got, err, s)
		}
	})
}
