package machine

import (
	"errors"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
)

// An announcement ends with the session that it was said in: who waits for its export
// hears Gone. Said again while a rank is missing it fails by itself, and leaves an export
// of the label alone; once every rank is back it names a new hand-off.
func TestAnnouncedAgain(t *testing.T) {
	w := pair(t, 2, 1)
	p := w.at("p", 0)
	announce := func() { p.step(FromEngine{p.eng.session, handoff.Announce{Label: "r1"}}) }
	announce()
	first := *p.notices[len(p.notices)-1].Manifest
	w.lastC++
	w.at("d", 0).step(Import{Call: w.lastC, Import: handoff.Import{Manifest: first, Tokens: make([]int32, 20)}})
	w.run()
	if len(w.calls) != 0 {
		t.Fatal("answered before the export")
	}
	p.step(EngineDown{p.eng.session})
	w.run()
	if r := w.ended(w.lastC); !errors.Is(r.Err, handoff.ErrGone) {
		t.Fatalf("who waited for the export hears %v", r.Err)
	}
	rank := w.at("p", 1)
	rank.step(EngineDown{rank.eng.session})
	p.reattach()
	w.run()
	announce()
	w.run()
	if f, ok := p.eng.got[len(p.eng.got)-1].(handoff.Failed); !ok || f.Label != "r1" || !f.SourceSafe || !errors.Is(f.Err, handoff.ErrNotReady) {
		t.Fatalf("the engine hears %+v of an announcement while a rank is missing", p.eng.got[len(p.eng.got)-1])
	}
	rank.reattach()
	w.run()
	announce()
	again := p.notices[len(p.notices)-1]
	if again.Kind != NoticeAnnounced || again.ID == first.ID {
		t.Fatalf("announced again as %+v", again)
	}
	c := w.importStart("d", w.export("p", "r1", 20))
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
}
