package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/cmd/dev/hosts"
	"github.com/batonkv/baton/cmd/dev/hosts/hoststest"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/staged/nixl"
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
	return up(t, shards, model, append([]func(*dev.Options){place}, change...)...), n
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
	for _, c := range []struct {
		name, over string
		link       hosts.Link
		finds      string // in the log
	}{
		{name: "a cable", over: "tcp"},
		{name: "late and lossy", over: "tcp", link: hosts.Link{Delay: 2 * time.Millisecond, Loss: 0.01}},
		{name: "NIXL", over: "nixl", finds: "tcp emulation: there is no RDMA device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.over == "nixl" {
				t.Setenv(nixl.EnvLibrary, need.NIXL(t))
			}
			w, _ := hosted(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid", c.link, func(o *dev.Options) { o.Backend = c.over })
			var moved int64
			for i := range 4 {
				moved += w.handoff(fmt.Sprint("r", i), prompt(i, 30+40*i)).Bytes
			}
			if got := w.by(w.decode, c.over); got != float64(moved) || moved == 0 {
				t.Errorf("%v bytes came by %s, want all %d", got, c.over, moved)
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
			eventually(t, "the log says "+c.finds, func() bool { return strings.Contains(w.log.String(), c.finds) })
		})
	}
}

// TestHostsFail: a process, a host or the cable fails in the middle of a hand-off from host to
// host. The import ends by what the reader knows of it, or by its deadline, and decode holds
// nothing; what comes back serves again.
func TestHostsFail(t *testing.T) {
	if !lab(t) {
		return
	}
	for _, c := range []struct {
		what     string
		fail     func(*world, *hosts.Net)
		back     func(*world, *hosts.Net) // nil: it stays as it is
		deadline time.Duration
		want     []error
	}{
		{"the source's wire movers are killed", func(w *world, _ *hosts.Net) { w.killAll(w.wireMovers(w.prefill)) }, func(*world, *hosts.Net) {},
			patience, []error{handoff.ErrTransfer}},
		{"the source's sidecars are killed", func(w *world, _ *hosts.Net) { w.killAll(w.sidecars(w.prefill)) }, func(*world, *hosts.Net) {},
			patience, []error{handoff.ErrPeer, handoff.ErrTransfer, handoff.ErrGone}},
		{"the cable is cut", func(w *world, n *hosts.Net) { w.plug(n, false) }, func(w *world, n *hosts.Net) { w.plug(n, true) },
			3 * time.Second, []error{handoff.ErrDeadline}},
		{"the cable stays cut", func(w *world, n *hosts.Net) { w.plug(n, false) }, nil,
			patience, []error{handoff.ErrPeer, handoff.ErrTransfer, handoff.ErrGone}},
		{"the source's host loses its power", func(_ *world, n *hosts.Net) { n.Hosts[0].Kill() }, nil,
			patience, []error{handoff.ErrPeer, handoff.ErrTransfer, handoff.ErrGone}},
	} {
		t.Run(c.what, func(t *testing.T) {
			w, n := hosted(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid", hosts.Link{}, func(o *dev.Options) { o.Backend, o.Restart = "tcp", true })
			w.handoff("first", prompt(9, 50))
			h := w.midway("a", c.deadline, w.wireMovers(w.prefill))
			c.fail(w, n)
			h.ended(t, c.want...)
			w.allFree(w.decode, poolBlocks, poolSlots)
			for _, p := range h.movers { // those of a sidecar or a host that was killed are gone
				_ = unix.PidfdSendSignal(p.fd, unix.SIGCONT, nil, 0)
			}
			if c.back != nil {
				c.back(w, n)
				w.recovers(h)
			}
		})
	}
}

func (w *world) killAll(ps []proc) {
	w.t.Helper()
	for _, p := range ps {
		p.signal(w.t, unix.SIGKILL)
	}
	for _, p := range ps {
		p.gone(w.t, "what was killed")
	}
}

// plug is the cable of prefill's host.
func (w *world) plug(n *hosts.Net, in bool) {
	w.t.Helper()
	if err := n.Plug(0, in); err != nil {
		w.t.Fatal(err)
	}
}
