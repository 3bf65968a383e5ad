package loop

import (
	"context"
	"fmt"
	"strconv"

	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// List tells what this leader knows of hand-offs.
func (v Service) List(ctx context.Context, q control.Query) (control.Page, error) {
	after, err := place(q.Page)
	if err == nil {
		err = q.Check()
	}
	if err != nil {
		return control.Page{}, err
	}
	if q.Limit == 0 {
		q.Limit = control.MaxPage
	}
	var page control.Page
	if asked := v.ask(ctx, func() {
		os, last, more, lerr := v.s.machine.List(machine.Selection{Sources: q.Role != control.Destination,
			Imports: q.Role != control.Source, Live: q.Live, After: after, Limit: int(q.Limit)})
		for _, o := range os {
			page.Infos = append(page.Infos, info(o))
		}
		if err = lerr; more {
			page.Next = token(last)
		}
	}); asked != nil {
		return control.Page{}, asked
	}
	return page, err
}

// token is a place in the list as callers carry it: "s17", "d23".
func token(p machine.Place) string {
	side := "s"
	if p.Import {
		side = "d"
	}
	return side + strconv.FormatUint(p.N, 10)
}

func place(token string) (machine.Place, error) {
	if token == "" {
		return machine.Place{}, nil
	}
	n, err := strconv.ParseUint(token[1:], 10, 64)
	if err != nil || token[0] != 's' && token[0] != 'd' {
		return machine.Place{}, fmt.Errorf("%w: list.page: %.32q is not the next of an earlier answer", handoff.ErrBound, token)
	}
	return machine.Place{Import: token[0] == 'd', N: n}, nil
}

// Geometry tells the model and shards of the group that this sidecar leads.
func (v Service) Geometry(ctx context.Context) (control.Geometry, error) {
	var g control.Geometry
	var err error
	if asked := v.ask(ctx, func() { g.Geometry, g.Name, g.WeightsEpoch, err = v.s.machine.Geometry() }); asked != nil {
		return control.Geometry{}, asked
	}
	return g, err
}
