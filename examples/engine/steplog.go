package engine

import "github.com/batonkv/baton/examples/engine/admission"

// manyWaits is after how many steps in a row a waiting prompt is worth a warning.
const manyWaits = 100

// rules are the captured shapes. Per-request state makes an engine strict.
func (r *Rank) rules() admission.Rules {
	return admission.Rules{Shapes: r.cfg.Shapes, Strict: r.hybrid()}
}

// batch is what a step computes.
func (s step) batch() (b admission.Batch) {
	for _, o := range s.Run {
		if o.Prompt > 0 {
			b.Prefills++
			b.Tokens += o.Prompt
		} else {
			b.Decodes++
			b.Tokens += int32(len(o.Tokens))
		}
	}
	return b
}

// logStep tells what a rank did in a step, and by which captured shape: equal on all ranks.
func (r *Rank) logStep(st step) {
	r.steps++
	b, ran := st.batch(), "nothing"
	if shape, ok := r.rules().Match(b); ok && !b.Idle() {
		ran = shape.String()
	} else if !b.Idle() {
		ran = "eager"
	} else if r.cfg.dummies() {
		ran = "dummy"
	}
	r.cfg.Log.Debug("step", "n", r.steps, "ran", ran, "tokens", b.Tokens, "prefills", b.Prefills, "decodes", b.Decodes,
		"applied", r.applied, "ended", len(st.End), "started", len(st.Start), "exported", len(st.Export))
}

// warnWaits tells of a prompt that no captured shape takes for long.
func (s *scheduler) warnWaits() {
	if n := s.gate.Waits(); n%manyWaits == 0 {
		s.r.cfg.Log.Warn("a prompt waits for a captured shape", "steps", n)
	}
}
