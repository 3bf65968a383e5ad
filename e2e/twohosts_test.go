package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/cmd/dev/hosts"
	"github.com/batonkv/baton/cmd/dev/hosts/hoststest"
	"github.com/batonkv/baton/discovery"
)

// lab is hoststest.Lab with the binary of these tests.
func lab(t *testing.T) bool {
	t.Helper()
	return hoststest.Lab(t, "BATON_BINARY="+binary)
}

// hosted brings a cluster up whose prefill groups run on one host and whose decode groups
// on another, each with a network, process numbers and a host id of its own.
func hosted(t *testing.T, shards, model string, link hosts.Link, change ...func(*dev.Options)) (*world, *hosts.Net) {
	t.Helper()
	n := hoststest.New(t, hosts.Config{Hosts: 2, Command: []string{binary, "host"}, Stderr: os.Stderr, Link: link})
	t.Log("packets go by " + n.How())
	place := func(o *dev.Options) {
		o.Listen = n.Addr()
		o.Place = func(g dev.Group) dev.Place {
			if g.Role == discovery.Prefill {
				return n.Hosts[0]
			}
			return n.Hosts[1]
		}
	}
	return up(t, shards, model, append(change, place)...), n
}

// by is how many bytes came into a group by a transport.
func (w *world) by(g *dev.Running, transport string) float64 {
	w.t.Helper()
	return w.metric(g, fmt.Sprintf("baton_moved_bytes_total{backend=%q", transport))
}

// TestTwoHosts: requests go from host to host, in another shape and however late and lossy
// the network is, and staging alone brings their bytes.
func TestTwoHosts(t *testing.T) {
	if !lab(t) {
		return
	}
	for name, link := range map[string]hosts.Link{"a cable": {}, "late and lossy": {Delay: 2 * time.Millisecond, Loss: 0.01}} {
		t.Run(name, func(t *testing.T) {
			w, _ := hosted(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid", link)
			var moved int64
			for i := range 4 {
				moved += w.handoff(fmt.Sprint("r", i), prompt(i, 30+40*i)).Bytes
			}
			if got := w.by(w.decode, "tcp"); got != float64(moved) || moved == 0 {
				t.Errorf("%v bytes came by TCP, want all %d", got, moved)
			}
			if all := w.metric(w.decode, "baton_moved_bytes_total"); all != float64(moved) {
				t.Errorf("%v bytes came in all, want %d", all, moved)
			}
			for name := range mapped(t, w.decode.Ranks[0].Sidecar.MoverPID) {
				if name != w.decode.Name+"-0" {
					t.Errorf("the mover of decode maps %s", name)
				}
			}
			w.nothingHeld()
		})
	}
}
