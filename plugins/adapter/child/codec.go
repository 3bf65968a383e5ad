package child

import (
	"fmt"
	"unicode/utf8"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/adapter"
	adapterv1 "github.com/batonkv/baton/proto/adapter/v1"
	"github.com/batonkv/baton/proto/codec"
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	controlv1 "github.com/batonkv/baton/proto/control/v1"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

func bound(field, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", handoff.ErrBound, field, fmt.Sprintf(format, args...))
}

func encodeInfo(i adapter.Info) (*adapterv1.RegisterResponse, error) {
	p := &adapterv1.RegisterResponse{Name: i.Name, Version: i.Version}
	for _, k := range i.Wants {
		p.Wants = append(p.Wants, controlv1.NoticeKind(k))
	}
	return p, i.Check()
}

// decodeInfo drops kinds of notices that a later release has.
func decodeInfo(p *adapterv1.RegisterResponse) (i adapter.Info, err error) {
	i = adapter.Info{Name: p.GetName(), Version: p.GetVersion()}
	for n, k := range p.GetWants() {
		if n >= 256 {
			return i, bound("register.wants", "%d, at most 256", len(p.GetWants()))
		}
		if k <= controlv1.NoticeKind(control.Linked) {
			i.Wants = append(i.Wants, control.Kind(max(k, 0)))
		}
	}
	return i, i.Check()
}

// each turns a list of at most limit.
func each[A, B any](field string, list []A, limit int, f func(A) (B, error)) (out []B, err error) {
	if len(list) > limit {
		return nil, bound(field, "%d, at most %d", len(list), limit)
	}
	for _, a := range list {
		b, err := f(a)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		out = append(out, b)
	}
	return out, nil
}

func checkGroup(g adapter.Group) error {
	for _, f := range [][2]string{{"cluster", g.Cluster}, {"pool", g.Pool}, {"name", g.Name}, {"tenant", g.Tenant}, {"role", string(g.Role)}, {"model", g.Model}} {
		if len(f[1]) > codec.MaxString || !utf8.ValidString(f[1]) {
			return bound("group."+f[0], "%d bytes, want at most %d of UTF-8", len(f[1]), codec.MaxString)
		}
	}
	return nil
}

func encodeGroup(g adapter.Group) (*adapterv1.Group, error) {
	status, err := control.EncodeStatus(g.Status)
	if err != nil {
		return nil, err
	}
	p := &adapterv1.Group{Cluster: g.Cluster, Pool: g.Pool, Name: g.Name, Tenant: g.Tenant, Role: string(g.Role),
		Status: status, Model: g.Model, WeightsEpoch: g.WeightsEpoch}
	if g.Geometry != [32]byte{} {
		p.Geometry = g.Geometry[:]
	}
	return p, checkGroup(g)
}

func decodeGroup(p *adapterv1.Group) (adapter.Group, error) {
	status, err := control.DecodeStatus(p.GetStatus())
	if err != nil {
		return adapter.Group{}, err
	}
	g := adapter.Group{Cluster: p.GetCluster(), Pool: p.GetPool(), Name: p.GetName(), Tenant: p.GetTenant(),
		Role: discovery.Role(p.GetRole()), Status: status, Model: p.GetModel(), WeightsEpoch: p.GetWeightsEpoch()}
	switch d := p.GetGeometry(); len(d) {
	case 0:
	case len(g.Geometry):
		g.Geometry = [32]byte(d)
	default:
		return g, bound("group.geometry", "%d bytes, want %d", len(d), len(g.Geometry))
	}
	return g, checkGroup(g)
}

func encodeState(s adapter.State) (*adapterv1.State, error) {
	group, err := encodeGroup(s.Group)
	if err != nil {
		return nil, err
	}
	p := &adapterv1.State{Group: group, More: s.More}
	p.Handoffs, err = each("handoffs", s.Handoffs, adapter.MaxHandoffs, control.EncodeInfo)
	return p, err
}

func decodeState(p *adapterv1.State) (adapter.State, error) {
	group, err := decodeGroup(p.GetGroup())
	if err != nil {
		return adapter.State{}, err
	}
	s := adapter.State{Group: group, More: p.GetMore()}
	s.Handoffs, err = each("handoffs", p.GetHandoffs(), adapter.MaxHandoffs, control.DecodeInfo)
	return s, err
}

func encodeUpdate(u adapter.Update) (p *adapterv1.NotifyRequest, err error) {
	p = &adapterv1.NotifyRequest{Lost: u.Lost, More: u.More}
	if u.Whole != nil {
		if p.Whole, err = encodeState(*u.Whole); err != nil {
			return nil, err
		}
	}
	if u.Group != nil {
		if p.Group, err = encodeGroup(*u.Group); err != nil {
			return nil, err
		}
	}
	if p.Changed, err = each("changed", u.Changed, adapter.MaxHandoffs, control.EncodeInfo); err != nil {
		return nil, err
	}
	if p.Gone, err = each("gone", u.Gone, adapter.MaxHandoffs, codec.ToID); err != nil {
		return nil, err
	}
	p.Notices, err = each("notices", u.Notices, adapter.MaxNotices, control.EncodeNotice)
	return p, err
}

func decodeUpdate(p *adapterv1.NotifyRequest) (u adapter.Update, err error) {
	u = adapter.Update{Lost: p.GetLost(), More: p.GetMore()}
	if p.GetWhole() != nil {
		s, err := decodeState(p.GetWhole())
		if err != nil {
			return u, err
		}
		u.Whole = &s
	}
	if p.GetGroup() != nil {
		g, err := decodeGroup(p.GetGroup())
		if err != nil {
			return u, err
		}
		u.Group = &g
	}
	if u.Changed, err = each("changed", p.GetChanged(), adapter.MaxHandoffs, control.DecodeInfo); err != nil {
		return u, err
	}
	if u.Gone, err = each("gone", p.GetGone(), adapter.MaxHandoffs, codec.FromID); err != nil {
		return u, err
	}
	u.Notices, err = each("notices", p.GetNotices(), adapter.MaxNotices, control.DecodeNotice)
	return u, err
}

func encodeRelease(id handoff.ID, key handoff.Key) (*controlv1.ReleaseRequest, error) {
	p, err := codec.ToID(id)
	return &controlv1.ReleaseRequest{Id: p, Key: key[:]}, err
}

// decodeOwn reads what names a hand-off by its id and key.
func decodeOwn(p interface {
	GetId() *commonv1.HandoffID
	GetKey() []byte
}) (handoff.ID, handoff.Key, error) {
	key, err := codec.FromKey(p.GetKey())
	if err != nil {
		return handoff.ID{}, key, err
	}
	id, err := codec.FromID(p.GetId())
	return id, key, err
}
