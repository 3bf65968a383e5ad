package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestGarbage: bytes of nobody's protocol on every socket harm nobody.
func TestGarbage(t *testing.T) {
	w := up(t, "tp=1,role=prefill+tp=2,role=decode", "hybrid")
	w.handoff("before", prompt(1, 40))
	type door struct{ network, addr string }
	var doors []door
	for _, g := range w.Groups {
		for _, k := range g.Ranks {
			dir := k.Sidecar.Engine
			doors = append(doors, door{"tcp", k.Sidecar.Addr}, door{"tcp", k.Sidecar.Metrics},
				door{"unix", filepath.Join(dir, "engine.sock")}, door{"unixpacket", filepath.Join(dir, "engine.fd.sock")},
				door{"unixpacket", filepath.Join(dir, "host.fd.sock")})
		}
		doors = append(doors, door{"unix", g.Front()})
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 32<<10)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	lines := [][]byte{noise, noise[:1], noise[:12], noise[:4096], []byte("GET / HTTP/1.1\r\n\r\n"), []byte("{}\n"), []byte("\n"),
		[]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + string(noise[:500])),
		[]byte("\x16\x03\x01\x7f\xff" + string(noise[:900])), []byte(strings.Repeat("[", 1<<16) + "\n"),
		[]byte(`{"mode":"stats","max_new":-9}` + "\n"), []byte(`{"mode":"full","max_new":1,"tokens":[-1]}` + "\n")}
	for _, d := range doors {
		for _, b := range lines {
			if err := shout(d.network, d.addr, b); err != nil {
				t.Errorf("%s %s: %v", d.network, filepath.Base(d.addr), err)
			}
		}
	}
	w.handoff("after", prompt(2, 40))
	w.handoff("after, again", prompt(3, 70))
	w.nothingHeld()
}

// shout connects, sends b, with a descriptor where those are taken, and leaves after
// the other end has answered or hung up, if it does.
func shout(network, addr string, b []byte) error {
	c, err := net.Dial(network, addr)
	if err != nil {
		return fmt.Errorf("the door is closed: %w", err)
	}
	defer c.Close()
	if u, ok := c.(*net.UnixConn); ok && network == "unixpacket" {
		_, _, err = u.WriteMsgUnix(b[:min(len(b), 4096)], unix.UnixRights(0, 1), nil)
		if err == nil {
			_, _ = u.Write(b[:min(len(b), 12)])
		}
	} else {
		_, _ = c.Write(b)
	}
	if cw, ok := c.(interface{ CloseWrite() error }); ok {
		_ = cw.CloseWrite()
		_, _ = c.Read(make([]byte, 1)) // an end that was told of the end answers or ends
	}
	return nil
}
