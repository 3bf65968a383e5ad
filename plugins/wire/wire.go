// Package wire turns what the interfaces of package plugins carry into proto/plugin/v1 and
// back, for the server (plugins/serve) and the client (plugins/host). What a hand-off
// itself consists of is proto/codec's and sidecar/control's.
//
// Both directions check the same bounds and fail with handoff.ErrBound and the field's
// name. Decoding keeps slices of the protobuf message. An empty slice decodes to nil.
package wire

import (
	"fmt"
	"unicode/utf8"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/proto/codec"
	pluginv1 "github.com/batonkv/baton/proto/plugin/v1"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// Bounds of one view of a cluster and of one plan.
const (
	MaxGroups     = 1 << 14
	MaxTransports = 16
	MaxMoves      = 1 << 20
	MaxDocument   = 8 << 20 // bytes that Explain renders
	// MaxMessage is that of the connection between host and plugin: a view of MaxGroups
	// groups, or a plan of MaxMoves moves.
	MaxMessage = 64 << 20
)

func bound(field, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", handoff.ErrBound, field, fmt.Sprintf(format, args...))
}

// text checks a string.
func text(field, s string) error {
	switch {
	case len(s) > codec.MaxString:
		return bound(field, "%d bytes, at most %d", len(s), codec.MaxString)
	case !utf8.ValidString(s):
		return bound(field, "not UTF-8")
	}
	return nil
}

func texts(fields ...string) error {
	for i := 0; i < len(fields); i += 2 {
		if err := text(fields[i], fields[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// Group checks the name of a group that a call is about. One that cannot name a group is
// handoff.ErrGroup, as one that nobody has.
func Group(name string) error {
	if err := discovery.CheckName("group", name); err != nil {
		if len(name) > codec.MaxString {
			return bound("group", "%d bytes, at most %d", len(name), codec.MaxString)
		}
		return fmt.Errorf("%w: %w", handoff.ErrGroup, err)
	}
	return nil
}

// Rank checks the name of a group, and a rank of it.
func Rank(group string, rank int32) error {
	if rank < 0 || rank >= codec.MaxRanks {
		return bound("rank", "%d: want 0 to %d", rank, codec.MaxRanks-1)
	}
	return Group(group)
}

func checkGroup(g plugins.Group) error {
	if err := texts("group.cluster", g.Cluster, "group.pool", g.Pool, "group.name", g.Name, "group.tenant", g.Tenant,
		"group.role", string(g.Role), "group.geometry", g.Geometry); err != nil {
		return err
	}
	switch g.Role {
	case "", discovery.Prefill, discovery.Decode, discovery.Both:
	default:
		return bound("group.role", "%q", g.Role)
	}
	if g.Size < 0 || g.Size > codec.MaxRanks || g.CapacityBlocks < 0 || g.CapacitySlots < 0 {
		return bound("group", "size %d, capacity %d and %d: want 0 or more, and at most %d ranks", g.Size, g.CapacityBlocks, g.CapacitySlots, codec.MaxRanks)
	}
	return nil
}

func checkRank(r plugins.Rank) error {
	if err := texts("rank.host", r.Host, "rank.addr", r.Addr); err != nil {
		return err
	}
	if r.Rank < 0 || r.Rank >= codec.MaxRanks || r.PID < 0 {
		return bound("rank", "rank %d, pid %d", r.Rank, r.PID)
	}
	if len(r.Transports) > MaxTransports {
		return bound("rank.transports", "%d, at most %d", len(r.Transports), MaxTransports)
	}
	for _, t := range r.Transports {
		if err := text("rank.transports", t); err != nil {
			return err
		}
	}
	return nil
}

// EncodeGroups encodes a view of the cluster.
func EncodeGroups(gs []plugins.Group) (*pluginv1.GroupsResponse, error) {
	if len(gs) > MaxGroups {
		return nil, bound("groups", "%d, at most %d", len(gs), MaxGroups)
	}
	p := &pluginv1.GroupsResponse{Groups: make([]*pluginv1.Group, len(gs))}
	for i, g := range gs {
		if err := checkGroup(g); err != nil {
			return nil, err
		}
		e := &pluginv1.Group{Cluster: g.Cluster, Pool: g.Pool, Name: g.Name, Tenant: g.Tenant, Role: string(g.Role),
			Instance: uint64(g.Instance), Size: g.Size, Complete: g.Complete, Draining: g.Draining, Geometry: g.Geometry,
			CapacityBlocks: g.CapacityBlocks, CapacitySlots: g.CapacitySlots}
		if len(g.Ranks) > codec.MaxRanks {
			return nil, bound("group.ranks", "%d, at most %d", len(g.Ranks), codec.MaxRanks)
		}
		for _, r := range g.Ranks {
			if err := checkRank(r); err != nil {
				return nil, err
			}
			e.Ranks = append(e.Ranks, &pluginv1.Rank{Rank: int32(r.Rank), Incarnation: uint64(r.Incarnation), Host: r.Host,
				Pid: r.PID, Addr: r.Addr, Transports: r.Transports})
		}
		p.Groups[i] = e
	}
	return p, nil
}

// DecodeGroups decodes a view of the cluster.
func DecodeGroups(p *pluginv1.GroupsResponse) ([]plugins.Group, error) {
	if n := len(p.GetGroups()); n > MaxGroups {
		return nil, bound("groups", "%d, at most %d", n, MaxGroups)
	}
	var gs []plugins.Group
	for _, e := range p.GetGroups() {
		g := plugins.Group{Cluster: e.GetCluster(), Pool: e.GetPool(), Name: e.GetName(), Tenant: e.GetTenant(),
			Role: discovery.Role(e.GetRole()), Instance: handoff.Instance(e.GetInstance()), Size: e.GetSize(), Complete: e.GetComplete(),
			Draining: e.GetDraining(), Geometry: e.GetGeometry(), CapacityBlocks: e.GetCapacityBlocks(), CapacitySlots: e.GetCapacitySlots()}
		if err := checkGroup(g); err != nil {
			return nil, err
		}
		if n := len(e.GetRanks()); n > codec.MaxRanks {
			return nil, bound("group.ranks", "%d, at most %d", n, codec.MaxRanks)
		}
		for _, x := range e.GetRanks() {
			r := plugins.Rank{Member: handoff.Member{Group: g.Name, Rank: layout.Rank(x.GetRank()), Incarnation: handoff.Incarnation(x.GetIncarnation())},
				Host: x.GetHost(), PID: x.GetPid(), Addr: x.GetAddr(), Transports: x.GetTransports()}
			if err := checkRank(r); err != nil {
				return nil, err
			}
			g.Ranks = append(g.Ranks, r)
		}
		gs = append(gs, g)
	}
	return gs, nil
}
