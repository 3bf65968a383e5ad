package demo

import (
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
)

// TestTransports: the column names what brings bytes from the row's source, once, and nothing of
// links to others.
func TestTransports(t *testing.T) {
	from := func(group, transport string) (l handoff.Link) {
		l.Peer.Group, l.Choice.Transport = group, transport
		return l
	}
	plain := from("p", "tcp")
	plain.Choice.Way = choice.Plain
	for want, links := range map[string][]handoff.Link{
		"-":         {from("q", "tcp"), from("p", "")},
		"shm":       {from("p", "shm"), from("q", "tcp"), from("p", "shm")},
		"shm+tcp":   {from("p", "shm"), from("p", "tcp")},
		"tcp-plain": {plain},
	} {
		if got := transports(links, "p"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
