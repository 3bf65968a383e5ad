package loop

import (
	"context"
	"strings"
	"testing"

	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
)

// TestUnmapped: memory of this host whose descriptors cannot be had is staged, and that is
// said.
func TestUnmapped(t *testing.T) {
	r, _ := stagedCluster(t, 1, func(string) choice.End { return offers("shm", "tcp") }, alike(wired(choice.Baseline{}, 0)))
	d := r.sides["d/0"]
	check(t, d.Service().ask(t.Context(), func() {
		d.fetch = func(ctx context.Context, b handoff.Buffers) (map[transfer.RegionID]transfer.Memory, error) {
			b.Socket += ".elsewhere"
			return fetch(ctx, b)
		}
	}))
	r.handoff("r1", 40)
	for _, l := range d.links(t, control.LinksQuery{}) {
		if l.Choice.Code != choice.Unmapped || l.Choice.Transport != choice.TCP || !strings.Contains(l.Choice.Why, "elsewhere") {
			t.Errorf("%+v", l)
		}
	}
	if got := d.scrape(t, `moved_bytes_total{backend="tcp"`); got != 40*layers*units*unitBytes {
		t.Errorf("%v bytes by tcp", got)
	}
}

// TestMappedAgain: what could not be mapped is tried again by each new link, as after the mover
// has started anew, and staged for as long as that fails.
func TestMappedAgain(t *testing.T) {
	r, _ := stagedCluster(t, 1, func(string) choice.End { return offers("shm", "tcp") }, alike(wired(choice.Baseline{}, 0)))
	d := r.sides["d/0"]
	elsewhere := func(is bool) {
		check(t, d.Service().ask(t.Context(), func() {
			d.fetch = func(ctx context.Context, b handoff.Buffers) (map[transfer.RegionID]transfer.Memory, error) {
				if is {
					b.Socket += ".elsewhere"
				}
				return fetch(ctx, b)
			}
		}))
	}
	by := func(code choice.Code, transport string) {
		t.Helper()
		for _, l := range d.links(t, control.LinksQuery{}) {
			if l.Choice.Code != code || l.Choice.Transport != transport {
				t.Errorf("%+v, want %s", l, transport)
			}
			if transport == choice.Shm && (l.Finding.Verdict != choice.Good || l.Measured.Rate != 0) {
				t.Errorf("%+v: it is mapped", l)
			}
		}
	}
	const size = 20 * layers * units * unitBytes
	elsewhere(true)
	r.handoff("r1", 20)
	by(choice.Unmapped, choice.TCP)
	d.MoverRestarted(22)
	r.handoff("r2", 20)
	by(choice.Unmapped, choice.TCP)
	if got := d.scrape(t, `moved_bytes_total{backend="tcp"`); got != 2*size {
		t.Errorf("%v bytes by tcp, want %d", got, 2*size)
	}
	elsewhere(false)
	r.handoff("r3", 20) // the link stands
	by(choice.Unmapped, choice.TCP)
	d.MoverRestarted(23)
	r.handoff("r4", 20)
	by(choice.Mapped, choice.Shm)
	if got := d.scrape(t, `moved_bytes_total{backend="shm"`); got != size {
		t.Errorf("%v bytes mapped, want %d", got, size)
	}
}
