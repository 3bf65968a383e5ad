package control

import (
	"bytes"
	"fmt"

	"github.com/batonkv/baton/proto/codec"
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	controlv1 "github.com/batonkv/baton/proto/control/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

const maxCounters = 1 << 12

func over(field string, n, limit int) error {
	return fmt.Errorf("%w: %s: %d, at most %d", handoff.ErrBound, field, n, limit)
}

func checkLabel(s string) error {
	if len(s) > codec.MaxString {
		return over("label", len(s), codec.MaxString)
	}
	return nil
}

// EncodeInfo encodes what Get tells.
func EncodeInfo(i Info) (*controlv1.GetResponse, error) {
	id, err := codec.ToID(i.ID)
	if err != nil {
		return nil, err
	}
	return &controlv1.GetResponse{Id: id, Role: controlv1.Role(i.Role), Phase: controlv1.Phase(i.Phase), Label: i.Label,
		Attempt: uint64(i.Attempt), Copies: i.Copies, Bytes: i.Bytes, Error: errs.ToProto(i.Err), SourceSafe: i.SourceSafe}, nil
}

// DecodeInfo decodes what Get tells.
func DecodeInfo(p *controlv1.GetResponse) (Info, error) {
	id, err := codec.FromID(p.GetId())
	if err != nil {
		return Info{}, err
	}
	if r, ph := p.GetRole(), p.GetPhase(); r < 0 || r > controlv1.Role(Destination) || ph < 0 || ph > controlv1.Phase(Failing) {
		return Info{}, fmt.Errorf("%w: info: role %d, phase %d", handoff.ErrBound, r, ph)
	}
	return Info{ID: id, Role: Role(p.GetRole()), Phase: Phase(p.GetPhase()), Label: p.GetLabel(),
		Attempt: handoff.Attempt(p.GetAttempt()), Copies: p.GetCopies(), Bytes: p.GetBytes(),
		Err: errs.FromProto(p.GetError()), SourceSafe: p.GetSourceSafe()}, checkLabel(p.GetLabel())
}

// EncodeQuery encodes which hand-offs are asked for.
func EncodeQuery(q Query) (*controlv1.ListRequest, error) {
	return &controlv1.ListRequest{Role: controlv1.Role(q.Role), Live: q.Live, Page: q.Page, Limit: q.Limit}, q.Check()
}

// DecodeQuery decodes which hand-offs are asked for.
func DecodeQuery(p *controlv1.ListRequest) (Query, error) {
	if r := p.GetRole(); r < 0 || r > controlv1.Role(Destination) {
		return Query{}, fmt.Errorf("%w: list.role: %d", handoff.ErrBound, r)
	}
	q := Query{Role: Role(p.GetRole()), Live: p.GetLive(), Page: p.GetPage(), Limit: p.GetLimit()}
	return q, q.Check()
}

// EncodePage encodes a part of a list.
func EncodePage(g Page) (*controlv1.ListResponse, error) {
	if len(g.Infos) > MaxPage {
		return nil, over("list.infos", len(g.Infos), MaxPage)
	}
	p := &controlv1.ListResponse{Next: g.Next}
	for _, i := range g.Infos {
		info, err := EncodeInfo(i)
		if err != nil {
			return nil, err
		}
		p.Infos = append(p.Infos, info)
	}
	return p, nil
}

// DecodePage decodes a part of a list.
func DecodePage(p *controlv1.ListResponse) (Page, error) {
	if n := len(p.GetInfos()); n > MaxPage {
		return Page{}, over("list.infos", n, MaxPage)
	}
	if n := len(p.GetNext()); n > codec.MaxString {
		return Page{}, over("list.next", n, codec.MaxString)
	}
	g := Page{Next: p.GetNext()}
	for _, info := range p.GetInfos() {
		i, err := DecodeInfo(info)
		if err != nil {
			return Page{}, err
		}
		g.Infos = append(g.Infos, i)
	}
	return g, nil
}

// EncodeGeometry encodes a group's model and shards, with their digest.
func EncodeGeometry(g Geometry) (*controlv1.GeometryResponse, error) {
	if len(g.Name) > codec.MaxString {
		return nil, over("geometry.name", len(g.Name), codec.MaxString)
	}
	model, shards, members, err := codec.ToGroup(g.Geometry)
	if err != nil {
		return nil, err
	}
	digest := layout.GeometryDigest(g.Model, g.Shards)
	return &controlv1.GeometryResponse{Model: model, Shards: shards, Digest: digest[:], Name: g.Name, WeightsEpoch: g.WeightsEpoch,
		Group: g.Group, Instance: uint64(g.Instance), Members: members}, nil
}

// DecodeGeometry decodes a group's model and shards, and holds them against their digest.
func DecodeGeometry(p *controlv1.GeometryResponse) (Geometry, error) {
	if n := len(p.GetName()); n > codec.MaxString {
		return Geometry{}, over("geometry.name", n, codec.MaxString)
	}
	g, err := codec.FromGroup(p.GetGroup(), p.GetInstance(), p.GetModel(), p.GetShards(), p.GetMembers())
	if err != nil {
		return Geometry{}, err
	}
	if d := layout.GeometryDigest(g.Model, g.Shards); !bytes.Equal(d[:], p.GetDigest()) {
		return Geometry{}, fmt.Errorf("%w: geometry.digest: %x, of the model and shards that came with it %x", handoff.ErrPlan, p.GetDigest(), d)
	}
	return Geometry{Geometry: g, Name: p.GetName(), WeightsEpoch: p.GetWeightsEpoch()}, nil
}

// EncodeDrain encodes how far a drain is.
func EncodeDrain(d Drain) (*controlv1.DrainResponse, error) {
	return &controlv1.DrainResponse{Draining: d.Draining, Safe: d.Safe, Imports: d.Imports, Exports: d.Exports, Waits: d.Waits}, checkDrain(d)
}

// DecodeDrain decodes how far a drain is.
func DecodeDrain(p *controlv1.DrainResponse) (Drain, error) {
	d := Drain{Draining: p.GetDraining(), Safe: p.GetSafe(), Imports: p.GetImports(), Exports: p.GetExports(), Waits: p.GetWaits()}
	return d, checkDrain(d)
}

func checkDrain(d Drain) error {
	switch {
	case len(d.Waits) > MaxWaits:
		return over("drain.waits", len(d.Waits), MaxWaits)
	case d.Imports < 0 || d.Exports < 0:
		return fmt.Errorf("%w: drain: %d imports, %d exports", handoff.ErrBound, d.Imports, d.Exports)
	}
	for _, w := range d.Waits {
		if len(w) > codec.MaxText {
			return over("drain.waits", len(w), codec.MaxText)
		}
	}
	return nil
}

// EncodeStatus encodes a status.
func EncodeStatus(s Status) (*controlv1.StatusResponse, error) {
	self, err := codec.ToMember(s.Self)
	if err != nil {
		return nil, err
	}
	if len(s.Members) > codec.MaxRanks {
		return nil, over("status.members", len(s.Members), codec.MaxRanks)
	}
	if len(s.Counters) > maxCounters {
		return nil, over("status.counters", len(s.Counters), maxCounters)
	}
	p := &controlv1.StatusResponse{Self: self, Instance: uint64(s.Instance), Ranks: s.Ranks, Ready: s.Ready,
		Capacity: codec.ToCapacity(s.Capacity), MoverPid: s.MoverPID, Counters: s.Counters, Draining: s.Draining}
	for _, m := range s.Members {
		member, err := codec.ToMember(m.Member)
		if err != nil {
			return nil, err
		}
		p.Members = append(p.Members, &controlv1.MemberStatus{Member: member, Pid: m.PID, Addr: m.Addr, Attached: m.Attached})
	}
	return p, nil
}

// DecodeStatus decodes a status.
func DecodeStatus(p *controlv1.StatusResponse) (Status, error) {
	if n := len(p.GetMembers()); n > codec.MaxRanks {
		return Status{}, over("status.members", n, codec.MaxRanks)
	}
	if n := len(p.GetCounters()); n > maxCounters {
		return Status{}, over("status.counters", n, maxCounters)
	}
	self, err := codec.FromMember(p.GetSelf())
	if err != nil {
		return Status{}, err
	}
	capacity, err := codec.FromCapacity(p.GetCapacity())
	if err != nil {
		return Status{}, err
	}
	s := Status{Self: self, Instance: handoff.Instance(p.GetInstance()), Ranks: p.GetRanks(), Ready: p.GetReady(),
		Capacity: capacity, MoverPID: p.GetMoverPid(), Draining: p.GetDraining()}
	if len(p.GetCounters()) > 0 {
		s.Counters = p.GetCounters()
	}
	for _, m := range p.GetMembers() {
		member, err := codec.FromMember(m.GetMember())
		if err != nil {
			return Status{}, err
		}
		if n := len(m.GetAddr()); n > codec.MaxString {
			return Status{}, over("status.members.addr", n, codec.MaxString)
		}
		s.Members = append(s.Members, MemberStatus{Member: member, PID: m.GetPid(), Addr: m.GetAddr(), Attached: m.GetAttached()})
	}
	return s, nil
}

// EncodeNotice encodes a notice.
func EncodeNotice(n Notice) (*controlv1.WatchResponse, error) {
	id, err := codec.ToID(n.ID)
	if err != nil {
		return nil, err
	}
	phases, err := codec.ToPhases(n.Phases)
	if err != nil {
		return nil, err
	}
	var manifest *commonv1.Manifest
	if n.Manifest != nil {
		if manifest, err = codec.ToManifest(*n.Manifest); err != nil {
			return nil, err
		}
	}
	var link *commonv1.Link
	if n.Link != nil {
		if link, err = codec.ToLink(*n.Link); err != nil {
			return nil, err
		}
	}
	return &controlv1.WatchResponse{Incarnation: uint64(n.Incarnation), Seq: n.Seq, Kind: controlv1.NoticeKind(n.Kind), Label: n.Label, Id: id, Manifest: manifest,
		Bytes: n.Bytes, Cached: n.Cached, Phases: phases, Error: errs.ToProto(n.Err), SourceSafe: n.SourceSafe, Lost: n.Lost, Link: link}, nil
}

// DecodeNotice decodes a notice.
func DecodeNotice(p *controlv1.WatchResponse) (Notice, error) {
	id, err := codec.FromID(p.GetId())
	if err != nil {
		return Notice{}, err
	}
	if k := p.GetKind(); k < controlv1.NoticeKind(Gap) || k > controlv1.NoticeKind(Linked) {
		return Notice{}, fmt.Errorf("%w: notice.kind: %d: want %d to %d", handoff.ErrBound, k, Gap, Linked)
	}
	phases, err := codec.FromPhases(p.GetPhases())
	if err != nil {
		return Notice{}, err
	}
	n := Notice{Incarnation: handoff.Incarnation(p.GetIncarnation()), Seq: p.GetSeq(), Kind: Kind(p.GetKind()), Label: p.GetLabel(), ID: id, Bytes: p.GetBytes(), Cached: p.GetCached(),
		Phases: phases, Err: errs.FromProto(p.GetError()), SourceSafe: p.GetSourceSafe(), Lost: p.GetLost()}
	if p.GetManifest() != nil {
		m, err := codec.FromManifest(p.GetManifest())
		if err != nil {
			return Notice{}, err
		}
		n.Manifest = &m
	}
	if p.GetLink() != nil {
		l, err := codec.FromLink(p.GetLink())
		if err != nil {
			return Notice{}, err
		}
		n.Link = &l
	}
	return n, checkLabel(n.Label)
}
