package client

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
)

// growing is an export whose parts leave. What a part may not change is that of the first.
type growing struct {
	parts  uint32        // that were exported
	blocks []int32       // that they named
	reach  handoff.Reach // of the last
	alike
}

// alike is what all parts of an export have.
type alike struct {
	tokens, position int32
	weights          uint64
	salt             handoff.Salt
}

// exports takes an export of all of a prompt.
func (r *record) exports(e handoff.Export) error {
	if err := r.free(e.Label); err != nil {
		return err
	}
	if err := r.bounds.Export(e.Label, nil, e.Blocks, e.Slot, e.Tokens, e.Tokens); err != nil {
		return err
	}
	r.pin(e.Label)
	return nil
}

// free says why a label cannot be exported.
func (r *record) free(label string) error {
	switch {
	case label == "":
		return fmt.Errorf("%w: an export has a label", handoff.ErrEngine)
	case slices.ContainsFunc(r.log[r.after(r.applied):r.after(r.taken)], func(d handoff.Decision) bool {
		return d.Kind == handoff.Free && d.Label == label
	}):
		return fmt.Errorf("%w: label %q was freed: say Applied before it is exported again", handoff.ErrEngine, label)
	case r.pins[label]:
		return fmt.Errorf("%w: label %q is exported already: it is over with Free, Failed or UnpinExport", handoff.ErrEngine, label)
	case len(r.pins) >= maxPins:
		return fmt.Errorf("%w: %d exports are held", handoff.ErrBound, maxPins)
	}
	return nil
}

func (r *record) pin(label string) {
	delete(r.announced, label)
	r.pins[label] = true
}

// grows takes a part.
func (r *record) grows(e handoff.ExportPart) (told bool, err error) {
	g := growing{alike: alike{e.Tokens, e.Position, e.WeightsEpoch, e.Salt}}
	if e.Part == 1 {
		err = r.free(e.Label)
	} else {
		g, told, err = r.continues(e.Label, e.Part-1, g.alike)
	}
	if told || err != nil {
		return told, err
	}
	if !e.Reach.Within(e.Tokens) || !e.Reach.Follows(g.reach) {
		return false, fmt.Errorf("%w: part %d of label %q reaches %+v of %d tokens, after %+v", handoff.ErrEngine, e.Part, e.Label, e.Reach, e.Tokens, g.reach)
	}
	if err := r.bounds.Export(e.Label, g.blocks, e.Blocks, -1, e.Reach.Ahead, e.Tokens); err != nil {
		return false, err
	}
	r.pin(e.Label)
	g.parts, g.blocks, g.reach = e.Part, append(g.blocks, e.Blocks...), e.Reach
	r.growing[e.Label] = g
	return false, nil
}

// closes takes the export that closes the parts of its label.
func (r *record) closes(e handoff.Export) (told bool, err error) {
	g, told, err := r.continues(e.Label, e.Parts, alike{e.Tokens, e.Position, e.WeightsEpoch, e.Salt})
	if told || err != nil {
		return told, err
	}
	if len(e.Blocks) < len(g.blocks) || !slices.Equal(e.Blocks[:len(g.blocks)], g.blocks) {
		return false, fmt.Errorf("%w: export of %q names other blocks than its parts", handoff.ErrEngine, e.Label)
	}
	if err := r.bounds.Export(e.Label, nil, e.Blocks, e.Slot, e.Tokens, e.Tokens); err != nil {
		return false, err
	}
	delete(r.growing, e.Label)
	return false, nil
}

// continues is what follows so many parts of a label. What continues an export that is over
// is not said: the engine hears, or heard, how it ended.
func (r *record) continues(label string, parts uint32, as alike) (g growing, told bool, err error) {
	switch g = r.growing[label]; {
	case g.parts == 0:
		return g, true, nil
	case g.parts != parts:
		err = fmt.Errorf("%w: %d parts of label %q are exported, and this follows %d", handoff.ErrEngine, g.parts, label, parts)
	case g.tokens != as.tokens || g.position != as.position:
		err = fmt.Errorf("%w: the first part of %q is of %d tokens at position %d, and this of %d at %d", handoff.ErrPosition, label,
			g.tokens, g.position, as.tokens, as.position)
	case g.weights != as.weights:
		err = fmt.Errorf("%w: the first part of %q is of epoch %d, and this of %d", handoff.ErrWeights, label, g.weights, as.weights)
	case g.salt != as.salt:
		err = fmt.Errorf("%w: the first part of %q has another salt than this", handoff.ErrEngine, label)
	}
	return g, false, err
}
