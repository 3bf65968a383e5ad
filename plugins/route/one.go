package route

import (
	"context"
	"crypto/tls"
	"iter"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/control/client"
)

// One is the group of the sidecar at addr, as that sidecar tells it: no discovery is
// asked. config takes that sidecar's certificate. base names what a sidecar does not say
// of itself: cluster, pool, role and tenant.
func One(addr string, config *tls.Config, base discovery.Record) Source {
	return func(ctx context.Context) iter.Seq2[discovery.Snapshot, error] {
		return func(yield func(discovery.Snapshot, error) bool) {
			c, err := client.Dial(addr, config)
			if err != nil {
				yield(discovery.Snapshot{}, err)
				return
			}
			defer c.Close()
			if !tell(ctx, c, addr, base, yield) {
				return
			}
			for n, err := range c.Watch(ctx, control.Cursor{}) {
				if err != nil {
					yield(discovery.Snapshot{}, err)
					return
				}
				if changes(n.Kind) && !tell(ctx, c, addr, base, yield) {
					return
				}
			}
		}
	}
}

// changes says whether a notice can mean another record.
func changes(k control.Kind) bool {
	return k == control.Gap || k == control.Ready || k == control.NotReady || k == control.Draining || k == control.Serving
}

// tell yields what the sidecar says of its group, and whether more is wanted.
func tell(ctx context.Context, c *client.Client, addr string, base discovery.Record, yield func(discovery.Snapshot, error) bool) bool {
	st, err := c.Status(ctx)
	if err != nil {
		yield(discovery.Snapshot{}, err)
		return false
	}
	record := func(m control.MemberStatus) discovery.Record {
		r := base
		r.Group, r.Rank, r.Incarnation = m.Group, int32(m.Rank), uint64(m.Incarnation)
		r.Addr, r.PID, r.Ranks, r.Instance, r.Draining = m.Addr, m.PID, st.Ranks, uint64(st.Instance), st.Draining
		if !m.Attached {
			r.Instance = 0
		}
		return r
	}
	var s discovery.Snapshot
	self := false
	for _, m := range st.Members {
		if m.Member == st.Self {
			m.Addr, self = addr, true // by which it was reached
		}
		s.Records = append(s.Records, record(m))
	}
	if !self {
		s.Records = append(s.Records, record(control.MemberStatus{Member: st.Self, Addr: addr, Attached: st.Instance != 0}))
	}
	return yield(s, nil)
}
