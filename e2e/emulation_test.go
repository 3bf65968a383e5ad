package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/cmd/dev/hosts"
	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/transfer/staged/nixl"
)

// container is a host that has the host id of the kernel, as a container does.
type container struct{ dev.Place }

func (container) Host() string { return "" }

// contained are hosts that are containers of one host.
func contained(o *dev.Options) {
	place := o.Place
	o.Place = func(g dev.Group) dev.Place { return container{place(g)} }
}

// TestEmulation: where UCX would go over TCP in silence, between PID namespaces of one host and
// between hosts without RDMA, nixl moves the bytes all the same, and doctor names it and ends
// with 1; where tcp is let be taken, that is, and why is said.
func TestEmulation(t *testing.T) {
	t.Setenv(nixl.EnvLibrary, need.NIXL(t))
	if !lab(t) {
		return
	}
	const shards = "tp=1,role=prefill+tp=1,role=decode"
	backend := func(name string) func(*dev.Options) { return func(o *dev.Options) { o.Backend = name } }
	for name, c := range map[string]struct {
		change []func(*dev.Options)
		cause  string
	}{
		"containers": {[]func(*dev.Options){backend(config.NIXL), contained}, "the two run in different PID namespaces"},
		"hosts":      {[]func(*dev.Options){backend(config.NIXL)}, "there is no RDMA device on the host of "},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := hosted(t, shards, "attention", hosts.Link{}, c.change...)
			d, code := w.doctor()
			if len(d.Links) != 1 || code != 1 || d.Well {
				t.Fatalf("code %d, %+v", code, d)
			}
			l := d.Links[0]
			if l.Transport != "nixl" || l.Way != "ucx-tcp" || l.Verdict != "degraded" || !strings.Contains(l.Cause, "tcp emulation: "+c.cause) || l.Fix == "" || l.Rate <= 0 {
				t.Errorf("%+v", l)
			}
			moved := w.handoff("r1", prompt(1, 60)).Bytes
			if got := w.by(w.decode, "nixl"); got != float64(moved) {
				t.Errorf("%v bytes by nixl, want %d", got, moved)
			}
		})
	}
	t.Run("auto", func(t *testing.T) {
		w, _ := hosted(t, shards, "attention", hosts.Link{}, backend(config.Auto))
		moved := w.handoff("r1", prompt(1, 60)).Bytes
		d, _ := w.doctor()
		if len(d.Links) != 1 || d.Links[0].Transport != "tcp" || d.Links[0].Code != "emulated" || !strings.Contains(d.Links[0].Why, "because nixl would emulate reads over TCP") {
			t.Errorf("%+v", d)
		}
		if got := w.by(w.decode, "tcp"); got != float64(moved) {
			t.Errorf("%v bytes by tcp, want %d", got, moved)
		}
	})
}

// TestLateLink: a link over a late and lossy network is called degraded, with what to look for.
func TestLateLink(t *testing.T) {
	if !lab(t) {
		return
	}
	w, _ := hosted(t, "tp=1,role=prefill+tp=1,role=decode", "attention", hosts.Link{Delay: 20 * time.Millisecond, Loss: 0.05})
	d, code := w.doctor()
	if len(d.Links) != 1 || code != 1 {
		t.Fatalf("code %d, %+v", code, d)
	}
	if l := d.Links[0]; l.Verdict != "degraded" || !strings.Contains(l.Cause, "one small read takes") || l.Fix == "" {
		t.Errorf("%+v", l)
	}
}
