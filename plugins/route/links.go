package route

import (
	"context"
	"slices"
	"sync"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/control/client"
)

// Asked is what one sidecar answered.
type Asked struct {
	Record discovery.Record
	Links  control.Links
	Err    error
	Gone   bool // it did not answer, and has left discovery since
}

// atOnce bounds the hosts whose sidecars are asked at the same time.
const atOnce = 16

// Links asks the sidecars of groups, all of the cluster if there are none, for their links,
// those of one host one after the other: what one measures is not to slow what another does. The
// answers are in the order of names. Each is bounded by Config.Call beside what q takes.
func (r *Router) Links(ctx context.Context, q control.LinksQuery, groups []string) ([]Asked, error) {
	s, err := r.view.first(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		if s.ranks[g] == 0 {
			return nil, unknown(g, s)
		}
	}
	var out []Asked
	hosts := map[string][]int{}
	for _, rec := range s.records {
		if len(groups) == 0 || slices.Contains(groups, rec.Group) {
			hosts[rec.Host] = append(hosts[rec.Host], len(out))
			out = append(out, Asked{Record: rec})
		}
	}
	var work sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for _, of := range hosts {
		work.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			for _, i := range of {
				out[i].Links, out[i].Err = r.linksOf(ctx, out[i].Record, q)
			}
		})
	}
	work.Wait()
	if s, err = r.view.first(ctx); err == nil {
		for i := range out {
			out[i].Gone = out[i].Err != nil && !s.shows(out[i].Record)
			for _, rec := range s.records { // what it says of its group may be newer
				if rec.Group == out[i].Record.Group && rec.Rank == out[i].Record.Rank && rec.Incarnation == out[i].Record.Incarnation {
					out[i].Record = rec
				}
			}
		}
	}
	return out, ctx.Err()
}

// linksOf asks one sidecar over a connection of its own: the router keeps those to leaders.
func (r *Router) linksOf(ctx context.Context, rec discovery.Record, q control.LinksQuery) (control.Links, error) {
	c, err := client.Dial(rec.Addr, r.cfg.TLS(rec))
	if err != nil {
		return control.Links{}, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Call+q.Takes())
	defer cancel()
	return c.Links(ctx, q)
}
