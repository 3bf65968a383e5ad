package discovery

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func sample() Record {
	return Record{
		Cluster: "prod", Pool: "llama-70b", Group: "prefill-0", Rank: 1, Incarnation: math.MaxUint64,
		Instance: 7, Ranks: 2, Role: Prefill, Tenant: "team-a", Host: "0c5e-boot", PID: 4711, Started: 123456, PIDSpace: 4026531836,
		Addr: "10.0.0.1:7400", Geometry: "00ff", Transports: []string{"shm", "tcp"}, CapacityBlocks: 1024, CapacitySlots: 8,
	}
}

// full has every field at its bound.
func full() Record {
	name := strings.Repeat("n", 63)
	r := Record{
		Cluster: name, Pool: name, Group: name, Rank: MaxRanks - 1, Incarnation: math.MaxUint64,
		Instance: math.MaxUint64, Ranks: MaxRanks, Role: Prefill, Tenant: name, Host: strings.Repeat("h", MaxHost),
		PID: math.MaxInt32, Started: math.MaxUint64, PIDSpace: math.MaxUint64, Addr: strings.Repeat("a", MaxAddr-6) + ":65535",
		Geometry: strings.Repeat("f", MaxGeometry), CapacityBlocks: 1 << 30, CapacitySlots: 1 << 30, Draining: true,
	}
	for range MaxTransports {
		r.Transports = append(r.Transports, strings.Repeat("t", MaxTransport))
	}
	return r
}

func TestRecordGolden(t *testing.T) {
	path := filepath.Join("testdata", "record.json")
	got, err := EncodeRecord(sample())
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != strings.TrimSpace(string(want)) {
		t.Errorf("the encoding changed, which breaks running clusters:\n got %s\nwant %s", got, want)
	}
	if key := sample().Key(); key != "/baton/v1/prod/llama-70b/prefill-0/1" {
		t.Errorf("key %s", key)
	}
}

func TestRecordFits(t *testing.T) {
	b, err := EncodeRecord(full())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d bytes", len(b), MaxRecord)
	if back, err := DecodeRecord(b); err != nil || !reflect.DeepEqual(back, full()) {
		t.Errorf("%v: %+v", err, back)
	}
}

func TestRecordCheck(t *testing.T) {
	for field, breakIt := range map[string]func(*Record){
		"cluster ":         func(r *Record) { r.Cluster = "Prod" },
		"pool ":            func(r *Record) { r.Pool = "a/b" },
		"group ":           func(r *Record) { r.Group = "" },
		"tenant ":          func(r *Record) { r.Tenant = "-a" },
		"rank -1":          func(r *Record) { r.Rank = -1 },
		"rank 2":           func(r *Record) { r.Rank = 2 },
		"ranks ":           func(r *Record) { r.Ranks = MaxRanks + 1 },
		"incarnation":      func(r *Record) { r.Incarnation = 0 },
		"role ":            func(r *Record) { r.Role = "prefil" },
		"host ":            func(r *Record) { r.Host = "a b" },
		"pid ":             func(r *Record) { r.PID = 0 },
		"addr ":            func(r *Record) { r.Addr = "10.0.0.1" },
		`addr "0.0.0.0`:    func(r *Record) { r.Addr = "0.0.0.0:1" },
		`addr "[::]:1"`:    func(r *Record) { r.Addr = "[::]:1" },
		`addr ":7400"`:     func(r *Record) { r.Addr = ":7400" },
		`addr "h:0"`:       func(r *Record) { r.Addr = "h:0" },
		"addr of":          func(r *Record) { r.Addr = strings.Repeat("a", 300) + ":1" },
		"geometry ":        func(r *Record) { r.Geometry = "xyz0" },
		"transports: 17":   func(r *Record) { r.Transports = slices.Repeat([]string{"a"}, 17) },
		"transports[0]":    func(r *Record) { r.Transports = []string{"a b"} },
		"capacity_blocks ": func(r *Record) { r.CapacityBlocks = 1000 },
		"capacity_slots ":  func(r *Record) { r.CapacitySlots = -1 },
	} {
		r := sample()
		breakIt(&r)
		if err := r.Check(); !errors.Is(err, ErrRecord) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
		if _, err := EncodeRecord(r); err == nil {
			t.Errorf("%s: encoded", field)
		}
	}
	if err := sample().Check(); err != nil {
		t.Error(err)
	}
}

func TestDecodeRecord(t *testing.T) {
	b, err := EncodeRecord(sample())
	if err != nil {
		t.Fatal(err)
	}
	later := strings.Replace(string(b), "{", `{"racks":["r1"],`, 1)
	if r, err := DecodeAt(sample().Key(), []byte(later)); err != nil || !reflect.DeepEqual(r, sample()) {
		t.Errorf("a later version's field: %v %+v", err, r)
	}
	if _, err := DecodeAt(sample().Key()+"0", b); !errors.Is(err, ErrRecord) {
		t.Errorf("a record under another's key: %v", err)
	}
	for _, s := range []string{"", "{", "[]", "{}", "null", `{"rank":"x"}`, strings.Repeat(" ", MaxRecord+1)} {
		if _, err := DecodeRecord([]byte(s)); !errors.Is(err, ErrRecord) {
			t.Errorf("%.20q: %v", s, err)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for _, r := range []Record{sample(), full()} {
		b, err := EncodeRecord(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"cluster":"a","rank":-1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRecord(b)
		if err != nil {
			if !errors.Is(err, ErrRecord) {
				t.Fatalf("not ErrRecord: %v", err)
			}
			return
		}
		again, err := EncodeRecord(r)
		if err != nil {
			t.Fatalf("decoded but does not encode: %v", err)
		}
		if back, err := DecodeRecord(again); err != nil || !sameWire(back, r) {
			t.Fatalf("%v: %+v is not %+v", err, back, r)
		}
	})
}

// sameWire ignores the difference of no transports and an empty list.
func sameWire(a, b Record) bool {
	x, errX := json.Marshal(wire(a))
	y, errY := json.Marshal(wire(b))
	return errX == nil && errY == nil && string(x) == string(y)
}

func TestClass(t *testing.T) {
	for n, want := range map[int32]int32{-5: 0, 0: 0, 1: 1, 2: 2, 3: 2, 1000: 512, 1024: 1024, math.MaxInt32: 1 << 30} {
		if got := Class(n); got != want {
			t.Errorf("Class(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestScope(t *testing.T) {
	r := sample()
	for _, c := range []struct {
		scope    Scope
		holds    bool
		prefixes string
	}{
		{Scope{Cluster: "prod"}, true, "/baton/v1/prod/"},
		{Scope{Cluster: "prod", Pools: []string{"x", "llama-70b", "x"}}, true, "/baton/v1/prod/llama-70b/ /baton/v1/prod/x/"},
		{Scope{Cluster: "prod", Pools: []string{"llama"}}, false, "/baton/v1/prod/llama/"},
		{Scope{Cluster: "pro"}, false, "/baton/v1/pro/"},
	} {
		if c.scope.Holds(r) != c.holds || strings.Join(c.scope.Prefixes(), " ") != c.prefixes {
			t.Errorf("%+v: %v %v", c.scope, c.scope.Holds(r), c.scope.Prefixes())
		}
		inKey := slices.ContainsFunc(c.scope.Prefixes(), func(p string) bool { return strings.HasPrefix(r.Key(), p) })
		if inKey != c.holds {
			t.Errorf("%+v: its prefixes and Holds differ", c.scope)
		}
	}
	if err := (Scope{Cluster: "prod", Pools: []string{"a/"}}).Check(); !errors.Is(err, ErrRecord) {
		t.Error(err)
	}
}

func TestViewIsASortedMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var view View
		model := map[string]Record{}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			r := sample()
			r.Pool = rapid.SampledFrom([]string{"a", "b", "a-b"}).Draw(t, "pool")
			r.Rank = rapid.Int32Range(0, 12).Draw(t, "rank")
			r.Incarnation = rapid.Uint64().Draw(t, "incarnation")
			if rapid.Bool().Draw(t, "put") {
				view.Put(r)
				model[r.Key()] = r
			} else {
				view.Delete(r.Key())
				delete(model, r.Key())
			}
		}
		got := view.Snapshot(9)
		if got.Rev != 9 || len(got.Records) != len(model) || !slices.IsSortedFunc(got.Records, Compare) {
			t.Fatalf("%+v", got)
		}
		for _, r := range got.Records {
			if !reflect.DeepEqual(model[r.Key()], r) {
				t.Fatalf("%+v is not the last of its key", r)
			}
		}
	})
}
