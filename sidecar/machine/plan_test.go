package machine

import (
	"errors"
	"strings"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// TestPlanWantsTheWholeModel: a destination that leaves out units, as one whose ranks all state
// the first rank's, would be given half of the state and told that it has it.
func TestPlanWantsTheWholeModel(t *testing.T) {
	m := layout.Model{States: []layout.State{{Name: "attn.k", Paging: layout.PerBlock, Layers: 2, Units: 4, Elems: 8}}}
	shards := func(units ...layout.Span) (out []layout.Shard) {
		for r, u := range units {
			row := int64(u.Len()) * 16
			out = append(out, layout.Shard{Rank: layout.Rank(r), Box: layout.Box{Layers: layout.Span{Lo: 0, Hi: 2}, Units: u},
				Rows: 4, Items: 3, DType: layout.BF16, View: layout.View{Layer: 12 * row, Item: 4 * row, Row: row, Unit: 16, Elem: 2}})
		}
		return out
	}
	low, high := layout.Span{Lo: 0, Hi: 2}, layout.Span{Lo: 2, Hi: 4}
	src := handoff.Geometry{Group: "p", Model: m, Shards: shards(low, high)}
	for name, c := range map[string]struct {
		units []layout.Span
		good  bool
	}{
		"whole":           {[]layout.Span{{Lo: 0, Hi: 4}}, true},
		"copies":          {[]layout.Span{low, high, low, high}, true},
		"one half":        {[]layout.Span{low}, false},
		"one half, twice": {[]layout.Span{low, low}, false},
	} {
		_, err := plan(handoff.Geometry{Group: "d", Model: m, Shards: shards(c.units...)}, src)
		if (err == nil) != c.good || err != nil && (!errors.Is(err, handoff.ErrPlan) || !strings.Contains(err.Error(), "attn.k")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
