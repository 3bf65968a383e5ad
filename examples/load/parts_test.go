package load

import (
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// said is a session that keeps what its engine says.
type said struct {
	Session
	msgs []handoff.FromEngine
}

func (s *said) Send(m handoff.FromEngine) error {
	s.msgs = append(s.msgs, m)
	return nil
}

// TestPartsFollow: by chunks and by layers, what a part reaches follows the part before and
// holds what its tokens say when it is said; the export closes all of them.
func TestPartsFollow(t *testing.T) {
	ways := map[bool]int{}
	for tail := range uint64(16) {
		s := &said{}
		r, err := New(config(Hybrid, "planes", 0, 1))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		r.session, r.cfg.ExportParts = s, true
		label, n := fmt.Sprint(tail), int32(30)
		if err := r.prefill(startOp{Label: label, Prompt: Prompt{Tail: tail, Len: n}}); err != nil {
			t.Fatal(err)
		}
		q := r.exports[label]
		var before handoff.ExportPart
		var blocks []int32
		for len(r.growing) > 0 {
			ways[q.grows.layered]++
			if err := r.compute(); err != nil {
				t.Fatal(err)
			}
			e, ok := s.msgs[len(s.msgs)-1].(handoff.ExportPart)
			if !ok {
				break
			}
			if e.Part != before.Part+1 || !e.Reach.Within(n) || e.Reach == before.Reach || !e.Reach.Follows(before.Reach) {
				t.Fatalf("part %+v follows %+v", e, before)
			}
			blocks, before = append(blocks, e.Blocks...), e
			if err := r.state.check(items{q.table.Blocks, -1}, q.chain, layout.Span{Hi: e.Reach.Tokens}); err != nil {
				t.Fatalf("part %d: %v", e.Part, err)
			}
		}
		x := s.msgs[len(s.msgs)-1].(handoff.Export)
		if before.Part == 0 || x.Parts != before.Part || !slices.Equal(x.Blocks[:len(blocks)], blocks) {
			t.Fatalf("%+v closes %+v, which named %v", x, before, blocks)
		}
		if err := r.state.check(q.at(), q.chain, layout.Span{Hi: n}); err != nil {
			t.Fatal(err)
		}
	}
	if ways[true] == 0 || ways[false] == 0 {
		t.Errorf("parts by the way they leave (by layers or not): %v", ways)
	}
}
