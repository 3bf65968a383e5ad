package client

import (
	"errors"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// twoBlocks attaches two blocks of 16 tokens, and one slot.
var twoBlocks = handoff.Attach{Capacity: handoff.Capacity{Blocks: 2, Slots: 1, BlockTokens: 16},
	Model:  handoff.ModelIdentity{Layout: layout.Model{States: []layout.State{{Name: "k", Paging: layout.PerBlock}, {Name: "ssm", Paging: layout.PerRequest}}}},
	Shards: []layout.Shard{{State: 0, Rows: 16, Items: 2}, {State: 1, Rows: 1, Items: 1}}}

// TestWhatIsNotThere: blocks and slots that the rank has not, or names twice, are refused at
// the call, and change nothing: what is right can still be said.
func TestWhatIsNotThere(t *testing.T) {
	whole := handoff.Export{Label: "r", Blocks: []int32{1, 0}, Tokens: 20, Position: 20}
	first := handoff.ExportPart{Label: "r", Part: 1, Blocks: []int32{1}, Tokens: 20, Position: 20, Reach: handoff.All(16)}
	next, last := first, whole
	next.Part, next.Blocks, next.Reach, last.Parts = 2, []int32{0}, handoff.All(18), 1
	answer := handoff.Reserved{N: 1, Blocks: []int32{1, 0}}
	export := func(e handoff.Export, change func(*handoff.Export)) handoff.FromEngine { change(&e); return e }
	part := func(e handoff.ExportPart, change func(*handoff.ExportPart)) handoff.FromEngine { change(&e); return e }
	reserved := func(change func(*handoff.Reserved)) handoff.FromEngine { r := answer; change(&r); return r }
	for name, c := range map[string]struct {
		before handoff.FromEngine
		bad    handoff.FromEngine
		good   handoff.FromEngine
		is     error
	}{
		"beyond":                {nil, export(whole, func(e *handoff.Export) { e.Blocks = []int32{0, 2} }), whole, handoff.ErrEngine},
		"less than none":        {nil, export(whole, func(e *handoff.Export) { e.Blocks = []int32{0, -1} }), whole, handoff.ErrEngine},
		"twice":                 {nil, export(whole, func(e *handoff.Export) { e.Blocks = []int32{1, 1} }), whole, handoff.ErrEngine},
		"too many":              {nil, export(whole, func(e *handoff.Export) { e.Tokens, e.Position = 16, 16 }), whole, handoff.ErrEngine},
		"too few":               {nil, export(whole, func(e *handoff.Export) { e.Blocks = e.Blocks[:1] }), whole, handoff.ErrEngine},
		"a slot beyond":         {nil, export(whole, func(e *handoff.Export) { e.Slot = 1 }), whole, handoff.ErrEngine},
		"a part beyond":         {nil, part(first, func(e *handoff.ExportPart) { e.Blocks = []int32{7} }), first, handoff.ErrEngine},
		"a part of too few":     {nil, part(first, func(e *handoff.ExportPart) { e.Reach = handoff.All(17) }), first, handoff.ErrEngine},
		"a block of the first":  {first, part(next, func(e *handoff.ExportPart) { e.Blocks = []int32{1} }), next, handoff.ErrEngine},
		"other weights":         {first, part(next, func(e *handoff.ExportPart) { e.WeightsEpoch = 4 }), next, handoff.ErrWeights},
		"less than the first":   {first, part(next, func(e *handoff.ExportPart) { e.Reach = handoff.All(15) }), next, handoff.ErrEngine},
		"more than the prompt":  {first, part(next, func(e *handoff.ExportPart) { e.Reach = handoff.All(21) }), next, handoff.ErrEngine},
		"of another length":     {first, part(next, func(e *handoff.ExportPart) { e.Tokens, e.Position = 19, 19 }), next, handoff.ErrPosition},
		"closes another length": {first, export(last, func(e *handoff.Export) { e.Tokens, e.Position = 19, 19 }), last, handoff.ErrPosition},
		"another salt":          {first, part(next, func(e *handoff.ExportPart) { e.Salt.LoRA = "l" }), next, handoff.ErrEngine},
		"closes other weights":  {first, export(last, func(e *handoff.Export) { e.WeightsEpoch = 4 }), last, handoff.ErrWeights},
		"closes another salt":   {first, export(last, func(e *handoff.Export) { e.Salt.Media[0] = 1 }), last, handoff.ErrEngine},
		"closes other blocks":   {first, export(last, func(e *handoff.Export) { e.Blocks = []int32{0, 1} }), last, handoff.ErrEngine},
		"closes beyond":         {first, export(last, func(e *handoff.Export) { e.Blocks = []int32{1, 2} }), last, handoff.ErrEngine},
		"reserved beyond":       {nil, reserved(func(r *handoff.Reserved) { r.Blocks = []int32{0, 2} }), answer, handoff.ErrEngine},
		"reserved twice":        {nil, reserved(func(r *handoff.Reserved) { r.Blocks = []int32{0, 0} }), answer, handoff.ErrEngine},
		"reserved a slot more":  {nil, reserved(func(r *handoff.Reserved) { r.Slot = 1 }), answer, handoff.ErrEngine},
		"export after its part": {first, export(whole, func(*handoff.Export) {}), last, handoff.ErrEngine},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecord(twoBlocks, noon)
			for _, s := range []struct {
				msg handoff.FromEngine
				is  error
			}{{c.before, nil}, {c.bad, c.is}, {c.good, nil}} {
				if s.msg == nil {
					continue
				}
				if told, err := r.sends(s.msg, noon); told || !errors.Is(err, s.is) {
					t.Fatalf("%+v: told %v, %v, want %v", s.msg, told, err, s.is)
				}
			}
		})
	}
}

// TestAttachesWhatIsNotThere: a capacity that the shards have not is refused before anybody
// is dialled.
func TestAttachesWhatIsNotThere(t *testing.T) {
	a := twoBlocks
	if err := (Config{Attach: a}).Check(); err != nil {
		t.Fatal(err)
	}
	a.Capacity.Blocks = 3
	if err := (Config{Attach: a}).Check(); !errors.Is(err, handoff.ErrAttach) {
		t.Errorf("got %v", err)
	}
}
