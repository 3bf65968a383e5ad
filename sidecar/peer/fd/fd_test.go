package fd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/sockfd"
)

func start(t *testing.T) (string, *Server) {
	t.Helper()
	path := filepath.Join(t.TempDir(), Socket)
	s, err := Listen(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return path, s
}

// pipe returns a read end and a write end. The read end tells when the last copy of
// the write end was closed.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func TestFetchOnce(t *testing.T) {
	path, s := start(t)
	r, w := pipe(t)
	if err := s.Offer(42, []int{int(w.Fd())}, "decode/0"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := Fetch(context.Background(), path, 41, 1); !errors.Is(err, handoff.ErrGone) || !strings.Contains(err.Error(), "key") {
		t.Errorf("wrong key: %v", err)
	}
	fds, err := Fetch(context.Background(), path, 42, 1)
	if err != nil {
		t.Fatal(err)
	}
	got := fds[0]
	if _, err := unix.Write(got, []byte("x")); err != nil {
		t.Fatal(err)
	}
	unix.Close(got)
	var p [2]byte
	if n, err := r.Read(p[:]); n != 1 || err != nil {
		t.Fatalf("read %d, %v", n, err)
	}
	if n, _ := r.Read(p[:]); n != 0 {
		t.Fatal("not at the end: a copy stayed open")
	}
	if _, err := Fetch(context.Background(), path, 42, 1); !errors.Is(err, handoff.ErrGone) {
		t.Errorf("second fetch: %v", err)
	}
}

// Several descriptors come in order, and none stays open where fewer or more are asked for.
func TestFetchSeveral(t *testing.T) {
	path, s := start(t)
	var reads []*os.File
	var writes []*os.File
	var fds []int
	for range 300 {
		r, w := pipe(t)
		reads, writes, fds = append(reads, r), append(writes, w), append(fds, int(w.Fd()))
	}
	for i, ask := range []int{300, 1, 301} {
		if err := s.Offer(uint64(i), fds, "d/0"); err != nil {
			t.Fatal(err)
		}
		got, err := Fetch(context.Background(), path, uint64(i), ask)
		if ask > len(fds) {
			if !errors.Is(err, handoff.ErrGone) {
				t.Errorf("%d asked for: %v", ask, err)
			}
			continue
		}
		if err != nil || len(got) != ask {
			t.Fatalf("%d of %d, %v", len(got), ask, err)
		}
		for k, f := range got {
			if _, err := unix.Write(f, []byte{byte(k)}); err != nil {
				t.Fatal(err)
			}
			var p [1]byte
			if _, err := reads[k].Read(p[:]); err != nil || p[0] != byte(k) {
				t.Fatalf("descriptor %d is of another pipe: %v", k, err)
			}
		}
		sockfd.CloseAll(got)
	}
	if err := s.Offer(9, fds[:0], "d/0"); !errors.Is(err, handoff.ErrBound) {
		t.Errorf("an offer of nothing: %v", err)
	}
	if err := s.Close(); err != nil || s.held != 0 {
		t.Errorf("close: %v, %d held", err, s.held)
	}
	for _, w := range writes {
		w.Close()
	}
	for _, r := range reads {
		if n, _ := r.Read(make([]byte, 1)); n != 0 {
			t.Fatal("a descriptor stayed open")
		}
	}
}

func TestRevokeAndClose(t *testing.T) {
	path, s := start(t)
	r, w := pipe(t)
	for key, owner := range map[uint64]string{1: "a", 2: "a", 3: "b"} {
		if err := s.Offer(key, []int{int(w.Fd())}, owner); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Offer(3, []int{int(w.Fd())}, "a"); !errors.Is(err, handoff.ErrBound) {
		t.Errorf("key in use: %v", err)
	}
	if err := s.Offer(9, []int{int(r.Fd()), -1}, "a"); err == nil {
		t.Error("a bad descriptor was taken")
	}
	w.Close()
	if n := s.Revoke("a"); n != 2 {
		t.Errorf("revoked %d, want 2", n)
	}
	if _, err := Fetch(context.Background(), path, 1, 1); !errors.Is(err, handoff.ErrGone) {
		t.Errorf("revoked: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n, _ := r.Read(make([]byte, 1)); n != 0 {
		t.Error("an offer stayed open")
	}
	if _, err := Fetch(context.Background(), path, 3, 1); !errors.Is(err, handoff.ErrGone) {
		t.Errorf("closed: %v", err)
	}
}

func TestBadSockets(t *testing.T) {
	for name, path := range map[string]string{"relative": "x.sock", "unclean": "/run/../x.sock", "long": "/" + strings.Repeat("x", 107)} {
		if _, err := Fetch(context.Background(), path, 1, 1); !errors.Is(err, sockfd.ErrSocket) || !errors.Is(err, handoff.ErrGone) {
			t.Errorf("%s: %v", name, err)
		}
	}
	path, _ := start(t)
	if _, err := Listen(path, nil); !errors.Is(err, sockfd.ErrSocket) || !strings.Contains(err.Error(), "process") {
		t.Errorf("served path: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Fetch(ctx, path, 1, 1); err == nil {
		t.Error("an ended context was ignored")
	}
}

// A sidecar that stands still, and serves nobody, is not waited for without end.
func TestFetchFromNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), Socket)
	l, err := sockfd.Listen("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := fetch(context.Background(), path, 1, 1, time.Millisecond); !errors.Is(err, handoff.ErrGone) {
		t.Errorf("%v, want %v", err, handoff.ErrGone)
	}
}

// FuzzRequest sends any packet, with and without a descriptor: the server goes on.
func FuzzRequest(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 7}, true)
	f.Add([]byte{1}, false)
	f.Add([]byte("far too long a request"), true)
	dir, err := os.MkdirTemp("", "fd")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, Socket)
	s, err := Listen(path, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	r, w, err := os.Pipe()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { r.Close(); w.Close() })
	f.Fuzz(func(t *testing.T, packet []byte, with bool) {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		sent := -1
		if with {
			sent = int(r.Fd())
		}
		if len(packet) == 0 || sockfd.Send(c, packet, sent) != nil {
			return
		}
		n, got, err := sockfd.Recv(c, make([]byte, 1))
		if got >= 0 || (err == nil && n != 1) || (err == nil && len(packet) != 8) {
			t.Fatalf("answer of %d bytes, descriptor %d, %v", n, got, err)
		}
	})
}
