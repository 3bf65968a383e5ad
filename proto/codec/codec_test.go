package codec

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	enginev1 "github.com/batonkv/baton/proto/engine/v1"
	"github.com/batonkv/baton/proto/errs"
	peerv1 "github.com/batonkv/baton/proto/peer/v1"
	"github.com/batonkv/baton/sidecar/handoff"
)

var (
	fromEngine = []handoff.FromEngine{attach, handoff.BuffersReady{}, handoff.Announce{}, handoff.Export{}, handoff.ExportPart{},
		handoff.Import{}, handoff.Held{}, handoff.Applied{}, handoff.Reserved{}, handoff.Freed{},
		handoff.AbortImport{}, handoff.ReleaseExport{}, handoff.Fenced{}, handoff.LifecycleAck{N: 3, Err: handoff.ErrDraining}, handoff.BlockEvents{}}
	toEngine = []handoff.ToEngine{handoff.Attached{}, handoff.MoverStarted{}, handoff.Exported{}, handoff.Decision{},
		handoff.Through{}, handoff.UnpinExport{}, handoff.Imported{}, handoff.Failed{}, handoff.TellBlocks{}}
	peer = []handoff.PeerMessage{handoff.Join{}, handoff.Roster{}, handoff.Geometry{}, handoff.Pinned{}, handoff.Leased{},
		handoff.Unpin{}, handoff.Landed{}, handoff.RankHeld{}, handoff.RankApplied{}, handoff.RankReserved{},
		handoff.Decision{}, handoff.WantGeometry{}, handoff.WantBuffers{}, handoff.Buffers{Cards: []handoff.BufferCard{{GPU: attach.Buffers[1].GPU}}}, handoff.Open{}, handoff.Opened{}, handoff.Part{},
		handoff.Check{}, handoff.Checked{}, handoff.Done{}, handoff.DoneAck{}, handoff.Withdraw{}, handoff.Extend{}, handoff.Extended{},
		handoff.StagedWant{}, handoff.StagedOffer{}, handoff.StagedCredit{}, handoff.StagedStop{}, handoff.StagedGone{},
		handoff.ProbeAsk{}, handoff.ProbeAt{}, handoff.LinkNews{},
		handoff.RankAcked{Ack: handoff.LifecycleAck{N: 3, Err: handoff.ErrRole}}}
)

// attach has each kind of memory.
var attach = handoff.Attach{Buffers: []handoff.BufferDecl{{ID: 0, Len: 1}, {ID: 1, Off: 256, Len: 1, GPU: &handoff.GPUMemory{UUID: [16]byte{1}, Handle: [64]byte{2}}},
	{ID: 2, Len: 1, GPU: &handoff.GPUMemory{UUID: [16]byte{1}, Chunks: []int64{2 << 20, 20 << 20}}}}}

// fill draws a value within the bounds into v. Every field is reached by reflection,
// so a field that the codec forgets fails the round trip.
func fill(t *rapid.T, v reflect.Value, name string) {
	switch v.Kind() {
	case reflect.Pointer:
		if rapid.Bool().Draw(t, name+"?") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem(), name)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), v.Type().Field(i).Name)
		}
		if g, is := v.Addr().Interface().(*handoff.GPUMemory); is && len(g.Chunks) > 0 {
			g.Handle = [64]byte{}
			for i, n := range g.Chunks {
				g.Chunks[i] = 1 + n%maxChunk
			}
		}
	case reflect.Slice:
		if n := rapid.IntRange(0, 3).Draw(t, "len"); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fill(t, v.Index(i), "")
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(uint64(rapid.Byte().Draw(t, name)))
		}
	case reflect.String:
		v.SetString(rapid.StringN(0, 20, MaxString).Draw(t, name))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, name))
	case reflect.Uint8:
		v.SetUint(uint64(rapid.Uint8Range(1, 2).Draw(t, name)))
	case reflect.Uint32, reflect.Uint64:
		if name == "Part" {
			v.SetUint(rapid.Uint64Range(0, MaxParts).Draw(t, name))
			return
		}
		v.SetUint(rapid.Uint64().Draw(t, name) & (1<<v.Type().Bits() - 1))
	case reflect.Int32:
		lo, hi := int32(0), int32(1<<10)
		if name == "Slot" {
			lo = -1
		}
		v.SetInt(int64(rapid.Int32Range(lo, hi).Draw(t, name)))
	case reflect.Int64:
		v.SetInt(rapid.Int64Range(0, maxHold).Draw(t, name))
	case reflect.Interface: // an error
		if text := rapid.StringN(0, 20, -1).Draw(t, name); text != "" {
			v.Set(reflect.ValueOf(errs.FromName(rapid.SampledFrom([]string{"", "handoff.gone", "transfer.mover"}).Draw(t, "name"), text)))
		}
	case reflect.Float64:
		v.SetFloat(rapid.Float64Range(0, 1e18).Draw(t, name))
	case reflect.Float32:
		v.SetFloat(float64(rapid.Float32().Draw(t, name)))
	default:
		t.Fatalf("no generator for %v", v.Type())
	}
}

// roundTrip checks that every message equals itself after encode, marshal and decode.
func roundTrip[M any, P proto.Message](t *testing.T, kinds []M, enc func(M) (P, error), dec func(P) (M, error)) {
	for _, kind := range kinds {
		t.Run(reflect.TypeOf(kind).Name(), rapid.MakeCheck(func(t *rapid.T) {
			v := reflect.New(reflect.TypeOf(kind)).Elem()
			fill(t, v, "")
			m := v.Interface().(M)
			p, err := enc(m)
			if err != nil {
				t.Fatal(err)
			}
			wire, err := proto.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			back := p.ProtoReflect().New().Interface().(P)
			if err := proto.Unmarshal(wire, back); err != nil {
				t.Fatal(err)
			}
			got, err := dec(back)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, m) {
				t.Fatalf("got  %+v\nwant %+v", got, m)
			}
		}))
	}
}

func TestRoundTrip(t *testing.T) {
	roundTrip(t, fromEngine, EncodeFromEngine, DecodeFromEngine)
	roundTrip(t, toEngine, EncodeToEngine, DecodeToEngine)
	roundTrip(t, peer, EncodePeer, DecodePeer)
}

func TestHelloRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h Hello
		fill(t, reflect.ValueOf(&h).Elem(), "")
		p, err := EncodeHello(h)
		if err != nil {
			t.Fatal(err)
		}
		h.End.Name, h.End.Host = h.Self.Name(), h.Host
		if got, err := DecodeHello(p); err != nil || !reflect.DeepEqual(got, h) {
			t.Fatalf("got %+v, %v, want %+v", got, err, h)
		}
		if _, err := DecodePeer(p); !errors.Is(err, handoff.ErrBound) {
			t.Fatalf("a hello among the messages: %v", err)
		}
	})
}

// TestEveryKindIsEncoded holds the lists above against the oneofs.
func TestEveryKindIsEncoded(t *testing.T) {
	for name, n := range map[string][2]int{
		"FromEngine":  {len(fromEngine), (&enginev1.FromEngine{}).ProtoReflect().Descriptor().Oneofs().Get(0).Fields().Len()},
		"ToEngine":    {len(toEngine), (&enginev1.ToEngine{}).ProtoReflect().Descriptor().Oneofs().Get(0).Fields().Len()},
		"PeerMessage": {len(peer) + 1, (&peerv1.PeerMessage{}).ProtoReflect().Descriptor().Oneofs().Get(0).Fields().Len()},
	} {
		if n[0] != n[1] {
			t.Errorf("%s: %d kinds here, %d in the proto", name, n[0], n[1])
		}
	}
}

func TestBoundsNameTheField(t *testing.T) {
	long := strings.Repeat("x", MaxString+1)
	for field, m := range map[string]handoff.FromEngine{
		"announce.label":       handoff.Announce{Label: long},
		"abort_import.label":   handoff.AbortImport{Label: "\xff"},
		"export.blocks":        handoff.Export{Blocks: make([]int32, MaxBlocks+1)},
		"export_part.blocks":   handoff.ExportPart{Blocks: make([]int32, MaxBlocks+1)},
		"export_part.part":     handoff.ExportPart{Part: MaxParts + 1},
		"reach.layers":         handoff.ExportPart{Reach: handoff.Reach{Tokens: 1, Layers: -1}},
		"export.slot":          handoff.Export{Slot: -2},
		"export.max_hold_ns":   handoff.Export{MaxHold: -time.Second},
		"resume.tokens":        handoff.Export{Resume: handoff.Resume{Tokens: make([]int32, MaxResume+1)}},
		"import.tokens":        handoff.Import{Tokens: make([]int32, MaxTokens+1)},
		"manifest.tokens":      handoff.Import{Manifest: handoff.Manifest{Tokens: -1}},
		"attach.rank":          handoff.Attach{Rank: MaxRanks},
		"attach.pins":          handoff.Attach{Pins: []string{long}},
		"attach.buffers":       handoff.Attach{Buffers: make([]handoff.BufferDecl, MaxBuffers+1)},
		"buffer.len":           handoff.Attach{Buffers: []handoff.BufferDecl{{Len: -1}}},
		"buffer.gpu":           handoff.Attach{Buffers: []handoff.BufferDecl{{GPU: &handoff.GPUMemory{Handle: [64]byte{1}, Chunks: []int64{1}}}}},
		"buffer.gpu.chunks":    handoff.Attach{Buffers: []handoff.BufferDecl{{GPU: &handoff.GPUMemory{Chunks: []int64{0}}}}},
		"capacity.blocks":      handoff.Attach{Capacity: handoff.Capacity{Blocks: -1}},
		"attach.scheduler":     handoff.Attach{Scheduler: 9},
		"attach.decisions":     handoff.Attach{Decisions: make([]handoff.Decision, MaxStated+1)},
		"attach.imports":       handoff.Attach{Imports: []string{long}},
		"salt.lora":            handoff.Export{Salt: handoff.Salt{LoRA: long}},
		"reserved.why":         handoff.Reserved{Why: strings.Repeat("x", MaxText+1)},
		"release_export.label": handoff.ReleaseExport{Label: long},
		"block_events.events":  handoff.BlockEvents{Events: make([]handoff.BlockEvent, MaxEvents+1)},
		"block_event.blocks":   handoff.BlockEvents{Events: []handoff.BlockEvent{{Kind: 1, Blocks: make([]handoff.StoredBlock, handoff.MaxEventBlocks+1)}}},
		"block_event.removed":  handoff.BlockEvents{Events: []handoff.BlockEvent{{Kind: 2, Removed: make([]uint64, handoff.MaxEventBlocks+1)}}},
		"block_event.kind":     handoff.BlockEvents{Events: []handoff.BlockEvent{{}}},
		"block_event.tokens":   handoff.BlockEvents{Events: []handoff.BlockEvent{{Kind: 1, Blocks: []handoff.StoredBlock{{Tokens: make([]int32, maxBlockTokens+1)}}}}},
	} {
		_, err := EncodeFromEngine(m)
		if !errors.Is(err, handoff.ErrBound) || !strings.Contains(err.Error(), " "+field+":") {
			t.Errorf("%s: got %v", field, err)
		}
	}
	if _, err := EncodeToEngine(handoff.Decision{}); !errors.Is(err, handoff.ErrBound) {
		t.Errorf("decision without a kind: %v", err)
	}
	// Each list is within its bound, the message is not.
	d := handoff.Decision{Kind: handoff.Reserve, Hashes: make([]uint64, MaxBlocks)}
	for range 8 {
		p := handoff.PinInfo{Blocks: make([]int32, MaxBlocks)}
		for i := range p.Blocks {
			p.Blocks[i] = 1 << 20
		}
		d.Sources = append(d.Sources, p)
	}
	if _, err := EncodePeer(d); !errors.Is(err, handoff.ErrBound) || !strings.Contains(err.Error(), "message: ") {
		t.Errorf("oversized message: %v", err)
	}
}

// fuzz checks that no bytes make a decoder panic, and that what it takes it can send.
func fuzz[M any, P proto.Message](f *testing.F, kinds []M, enc func(M) (P, error), dec func(P) (M, error)) {
	for _, k := range kinds {
		if p, err := enc(k); err == nil {
			wire, _ := proto.Marshal(p)
			f.Add(wire)
		}
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var p P
		p = p.ProtoReflect().New().Interface().(P)
		if proto.Unmarshal(wire, p) != nil {
			return
		}
		m, err := dec(p)
		if err != nil {
			if !errors.Is(err, handoff.ErrBound) || !utf8.ValidString(err.Error()) {
				t.Fatalf("%v is not ErrBound", err)
			}
			return
		}
		again, err := enc(m)
		if err != nil {
			t.Fatalf("decoded %+v, cannot encode: %v", m, err)
		}
		if m2, err := dec(again); err != nil || !equal(m, m2) {
			t.Fatalf("decoded %+v, then %+v, %v", m, m2, err)
		}
	})
}

// equal takes NaN for itself.
func equal[M any](a, b M) bool {
	if reflect.DeepEqual(a, b) {
		return true
	}
	return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b)
}

func FuzzFromEngine(f *testing.F) { fuzz(f, fromEngine, EncodeFromEngine, DecodeFromEngine) }
func FuzzToEngine(f *testing.F)   { fuzz(f, append(toEngine, stop), EncodeToEngine, DecodeToEngine) }
func FuzzPeer(f *testing.F)       { fuzz(f, append(peer, stop), EncodePeer, DecodePeer) }

var stop = handoff.Decision{N: 2, Kind: handoff.Lifecycle, Action: handoff.ActionStop}
