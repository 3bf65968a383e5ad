package mover

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/tcp"
	"github.com/batonkv/baton/transfer/staged/wiretest"
	"github.com/batonkv/baton/transfer/transfertest"
)

func openTCP(s Setup, arena []byte) (staged.Wire, error) {
	return tcp.New(tcp.Config{Wire: s.Wire, Arena: arena, Chunk: s.Chunk, Listen: s.Listen})
}

func wireConfig(t testing.TB, id staged.Incarnation, chunks int32, chunk int64) (WireConfig, []byte) {
	n := int64(chunks) * chunk
	m, b := transfertest.Arena(t, n)
	return WireConfig{Command: []string{os.Args[0]}, Env: append(os.Environ(), envRole+"=wire", "GORACE=atexit_sleep_ms=0"), Arena: m,
		Setup: Setup{Transport: "tcp", Wire: id, Group: "decode-0", Bytes: n, Chunk: chunk, Listen: "127.0.0.1:0"}}, b
}

// TestWire runs the suite of wires on wire movers: in this process and as children.
func TestWire(t *testing.T) {
	for name, child := range map[string]bool{"in process": false, "child": true} {
		t.Run(name, func(t *testing.T) {
			last := staged.Incarnation(0)
			wiretest.Run(t, func(t testing.TB, chunks int32, chunk int64) wiretest.End {
				last++
				c, b := wireConfig(t, last, chunks, chunk)
				var w *Wire
				var err error
				if child {
					w, err = StartWire(t.Context(), c)
				} else {
					w, err = WireInProcess(t.Context(), c, openTCP)
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { w.Close() })
				return wiretest.End{Wire: w, ID: last, Arena: b}
			})
		})
	}
}

// TestWireKilled: the exit of either end ends every fetch, and the bytes of those that had
// ended well are those that were offered.
func TestWireKilled(t *testing.T) {
	const chunks, chunk = 4, 1 << 20
	for _, victim := range []string{"source", "destination"} {
		t.Run(victim, func(t *testing.T) {
			sc, sb := wireConfig(t, 1, chunks, chunk)
			dc, db := wireConfig(t, 2, chunks, chunk)
			src, err := StartWire(t.Context(), sc)
			if err != nil {
				t.Fatal(err)
			}
			dst, err := StartWire(t.Context(), dc)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { src.Close(); dst.Close() })
			for i := range sb {
				sb[i] = byte(i/7) ^ byte(i>>12)
			}
			type end struct {
				chunk int32
				err   error
			}
			ends := make(chan end, chunks)
			for i := range int32(chunks) {
				if err := src.Offer(staged.Exposed{Offer: uint64(i), Chunk: i, Bytes: chunk}); err != nil {
					t.Fatal(err)
				}
				dst.Fetch(staged.Fetching{Addr: src.Addr(), Of: 1, Offer: uint64(i), Chunk: i, Bytes: chunk}, func(err error) { ends <- end{i, err} })
			}
			dead, want := src, transfer.ErrPeer
			if victim == "destination" {
				dead, want = dst, transfer.ErrMover
			}
			if err := unix.Kill(dead.PID(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			for range chunks {
				e := <-ends
				at := int64(e.chunk) * chunk
				if e.err == nil && !bytes.Equal(sb[at:at+chunk], db[at:at+chunk]) {
					t.Errorf("chunk %d: bytes differ", e.chunk)
				}
				if e.err != nil && !errors.Is(e.err, want) {
					t.Errorf("chunk %d: %v", e.chunk, e.err)
				}
			}
			<-dead.Exited()
			if !errors.Is(dead.Why(), transfer.ErrMover) {
				t.Errorf("why: %v", dead.Why())
			}
		})
	}
}

// TestWireDoesNotStart says what the child said.
func TestWireDoesNotStart(t *testing.T) {
	c, _ := wireConfig(t, 1, 2, 4096)
	c.Setup.Listen = "127.0.0.1:1"
	c.Setup.Chunk = 1 << 30
	if w, err := StartWire(t.Context(), c); err == nil {
		w.Close()
		t.Fatal("a wire over a chunk that is larger than its arena started")
	} else if !strings.Contains(err.Error(), "bad config") {
		t.Errorf("got %v", err)
	}
	c, _ = wireConfig(t, 1, 2, 4096)
	c.Env = append(os.Environ(), envRole+"=broken")
	if _, err := StartWire(t.Context(), c); !errors.Is(err, transfer.ErrMover) || !strings.Contains(err.Error(), "no such library") {
		t.Errorf("got %v", err)
	}
	c.Setup.Bytes++
	if _, err := WireInProcess(t.Context(), c, openTCP); !errors.Is(err, transfer.ErrMemory) {
		t.Errorf("an arena that is smaller than it says: %v", err)
	}
}
