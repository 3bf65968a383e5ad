package wire

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins"
	pluginv1 "github.com/batonkv/baton/proto/plugin/v1"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/reshard"
)

func groups() []plugins.Group {
	return []plugins.Group{
		{Cluster: "c", Pool: "p", Name: "g", Tenant: "t", Role: discovery.Decode, Instance: 5, Size: 2, Complete: true, Draining: true,
			Geometry: "ab", CapacityBlocks: 64, CapacitySlots: 8, Ranks: []plugins.Rank{
				{Member: handoff.Member{Group: "g", Rank: 0, Incarnation: 7}, Host: "h", PID: 12, Addr: "h:1", Transports: []string{"shm", "tcp"}},
				{Member: handoff.Member{Group: "g", Rank: 1, Incarnation: 8}, Host: "h", PID: 13, Addr: "h:2"}}},
		{Name: "bare"},
	}
}

func TestGroups(t *testing.T) {
	p, err := EncodeGroups(groups())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeGroups(p); err != nil || !reflect.DeepEqual(got, groups()) {
		t.Errorf("%+v, %v", got, err)
	}
	long := strings.Repeat("x", 300)
	for name, change := range map[string]func(g *plugins.Group){
		"name":       func(g *plugins.Group) { g.Name = long },
		"not UTF-8":  func(g *plugins.Group) { g.Tenant = "\xff" },
		"role":       func(g *plugins.Group) { g.Role = "boss" },
		"size":       func(g *plugins.Group) { g.Size = -1 },
		"capacity":   func(g *plugins.Group) { g.CapacitySlots = -1 },
		"addr":       func(g *plugins.Group) { g.Ranks[0].Addr = long },
		"rank":       func(g *plugins.Group) { g.Ranks[0].Rank = -1 },
		"transport":  func(g *plugins.Group) { g.Ranks[0].Transports[0] = long },
		"transports": func(g *plugins.Group) { g.Ranks[0].Transports = slices.Repeat([]string{"a"}, MaxTransports+1) },
	} {
		gs := groups()
		if change(&gs[0]); !isBound(EncodeGroups(gs)) {
			t.Errorf("%s: no error", name)
		}
	}
	if !isBound(EncodeGroups(make([]plugins.Group, MaxGroups+1))) || !isBound(DecodeGroups(&pluginv1.GroupsResponse{Groups: make([]*pluginv1.Group, MaxGroups+1)})) {
		t.Error("any number of groups")
	}
}

func isBound[T any](_ T, err error) bool { return errors.Is(err, handoff.ErrBound) }

func plan() plugins.Plan {
	return plugins.Plan{Digest: [32]byte{1}, Model: layout.Model{States: []layout.State{{Name: "attn.k", Paging: layout.PerBlock, Layers: 2, Units: 2, Elems: 8}}},
		Moves: []reshard.Move{{State: 0, Src: 1, Dst: 2, Box: layout.Box{Layers: layout.Span{Lo: 0, Hi: 2}, Units: layout.Span{Lo: 1, Hi: 2}}}}}
}

func TestPlan(t *testing.T) {
	p, err := EncodePlan(plan())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodePlan(p); err != nil || !reflect.DeepEqual(got, plan()) {
		t.Errorf("%+v, %v", got, err)
	}
	bad := plan()
	bad.Moves[0].State = 1
	if !isBound(EncodePlan(bad)) {
		t.Error("a move of no state")
	}
	p.Digest = p.Digest[1:]
	if !isBound(DecodePlan(p)) {
		t.Error("a short digest")
	}
}

func TestPlanQuery(t *testing.T) {
	q := plugins.PlanQuery{Source: plugins.Side{Group: "g"}, Destination: plugins.Side{Layout: "tp=2"}, Model: "m"}
	p, err := EncodePlanQuery(q)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodePlanQuery(p); err != nil || got != q {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []plugins.Side{{}, {Group: "g", Layout: "tp=1"}} {
		if !isBound(EncodePlanQuery(plugins.PlanQuery{Source: bad, Destination: q.Destination})) {
			t.Errorf("side %+v", bad)
		}
	}
	if !isBound(DecodePlanQuery(nil)) {
		t.Error("an empty query")
	}
}

func TestGroupNames(t *testing.T) {
	for name, want := range map[string]error{"g-1": nil, "": handoff.ErrGroup, "A": handoff.ErrGroup, strings.Repeat("x", 300): handoff.ErrBound} {
		if err := Group(name); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
	}
}

// again holds that what decodes also encodes, to something that decodes alike.
func again[P proto.Message, V any](t *testing.T, data []byte, p, empty P, dec func(P) (V, error), enc func(V) (P, error)) {
	if proto.Unmarshal(data, p) != nil {
		return
	}
	v, err := dec(p)
	if err != nil {
		return
	}
	q, err := enc(v)
	if err != nil {
		t.Fatalf("decoded %+v does not encode: %v", v, err)
	}
	b, err := proto.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(b, empty); err != nil {
		t.Fatal(err)
	}
	if w, err := dec(empty); err != nil || !reflect.DeepEqual(v, w) {
		t.Fatalf("%+v became %+v: %v", v, w, err)
	}
}

func seed(f *testing.F, p proto.Message, err error) {
	b, merr := proto.Marshal(p)
	if err != nil || merr != nil {
		f.Fatal(err, merr)
	}
	f.Add(b)
}

func FuzzGroups(f *testing.F) {
	p, err := EncodeGroups(groups())
	seed(f, p, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		again(t, data, &pluginv1.GroupsResponse{}, &pluginv1.GroupsResponse{}, DecodeGroups, EncodeGroups)
	})
}

func FuzzPlan(f *testing.F) {
	p, err := EncodePlan(plan())
	seed(f, p, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		again(t, data, &pluginv1.PlanResponse{}, &pluginv1.PlanResponse{}, DecodePlan, EncodePlan)
	})
}

func FuzzPlanQuery(f *testing.F) {
	p, err := EncodePlanQuery(plugins.PlanQuery{Source: plugins.Side{Group: "g"}, Destination: plugins.Side{Layout: "tp=2"}})
	seed(f, p, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		again(t, data, &pluginv1.PlanRequest{}, &pluginv1.PlanRequest{}, DecodePlanQuery, EncodePlanQuery)
	})
}
