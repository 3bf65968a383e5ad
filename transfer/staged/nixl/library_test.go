package nixl

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/nixl/fake"
)

// arena is memory outside Go's heap.
func arena(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// anotherLibrary is one that is no NIXL.
func anotherLibrary(t *testing.T) string {
	t.Helper()
	c, so := filepath.Join(t.TempDir(), "other.c"), filepath.Join(t.TempDir(), "libother.so")
	if err := os.WriteFile(c, []byte("int other(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := exec.Command("gcc", "-shared", "-fPIC", "-o", so, c).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return so
}

// TestBadLibrary: each fault of a library has its sentinel, and words that name the cause.
func TestBadLibrary(t *testing.T) {
	fine := pretend(t)
	text := filepath.Join(t.TempDir(), soname)
	if err := os.WriteFile(text, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	of := func(path string) Options { return Options{Library: path, Backend: DefaultBackend} }
	for name, c := range map[string]struct {
		o     Options
		fault string
		want  error
		says  string
	}{
		"missing":               {of("/nowhere/" + soname), "", ErrLibrary, "/nowhere/" + soname},
		"no path":               {of(""), "", ErrLibrary, "no path"},
		"no library":            {of(text), "", ErrLibrary, text},
		"another library":       {of(anotherLibrary(t)), "", ErrLibrary, "no function of NIXL"},
		"too old":               {pretend(t, "-DOLD"), "", ErrOld, "nixl_capi_make_xfer_req, nixl_capi_create_xfer_req"},
		"a stub":                {pretend(t, "-DSTUB"), "", ErrStub, "wheel"},
		"no such backend":       {Options{Library: fine.Library, Backend: "NONE"}, "", ErrBackend, "NONE"},
		"bad params":            {Options{Library: fine.Library, Backend: "UCX", Params: []string{"x"}}, "", ErrConfig, "params[0]"},
		"no agent":              {fine, "no-agent", ErrCall, "create_configured_agent: backend failed (-2)"},
		"backend does not open": {fine, "no-backend", ErrBackend, "create_backend"},
		"memory refused":        {fine, "no-register", ErrCall, "register_mem"},
		"no metadata":           {fine, "no-metadata", ErrCall, "get_local_md"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(fake.Env, c.fault)
			w, err := New(Config{Arena: arena(t, 8192), Chunk: 4096, Listen: "127.0.0.1:0", Options: c.o})
			if err == nil {
				w.Close()
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.says)
			}
		})
	}
}

// TestFaultsCross: a sidecar hears from its wire mover why the library does not serve.
func TestFaultsCross(t *testing.T) {
	c, _ := config(t, 1, 2, 4096, pretend(t, "-DOLD"))
	if w, err := mover.StartWire(t.Context(), c); err == nil || !strings.Contains(err.Error(), "too old: it lacks nixl_capi_make_xfer_req") {
		t.Errorf("got %v", err)
		if err == nil {
			w.Kill(nil)
		}
	}
}

// move moves a chunk from one new wire mover to another.
func move(t *testing.T, c1, c2 mover.WireConfig, from, into []byte) (src, dst *mover.Wire) {
	t.Helper()
	src, dst = start(t, c1), start(t, c2)
	if err := src.Offer(staged.Exposed{Offer: 1, Chunk: 1, Bytes: 4096}); err != nil {
		t.Fatal(err)
	}
	copy(from[4096:], bytes.Repeat([]byte("baton"), 1000))
	if err := <-fetched(dst, staged.Fetching{Addr: src.Addr(), Of: c1.Setup.Wire, Offer: 1, Bytes: 4096}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(from[4096:8192], into[:4096]) {
		t.Error("other bytes came")
	}
	return src, dst
}

// TestPrints: what the library prints is heard, and disturbs nothing.
func TestPrints(t *testing.T) {
	o := pretend(t)
	c1, from := config(t, 1, 2, 4096, o, fake.Env+"=prints")
	c2, into := config(t, 2, 2, 4096, o, fake.Env+"=prints")
	var said saying
	c1.Stderr = &said
	src, _ := move(t, c1, c2, from, into)
	if err := src.Close(); err != nil {
		t.Fatal(err)
	}
	if got := said.String(); !strings.Contains(got, "a word on stderr") {
		t.Errorf("it said %q", got)
	}
}

type saying struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *saying) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *saying) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestHangs: a library that does not return from its end, nor lets the process exit in C's
// way, ends with the process.
func TestHangs(t *testing.T) {
	o := pretend(t)
	c1, from := config(t, 1, 2, 4096, o)
	c2, into := config(t, 2, 2, 4096, o, fake.Env+"=hangs")
	_, dst := move(t, c1, c2, from, into)
	closed := make(chan error, 1)
	go func() { closed <- dst.Close() }()
	dst.Kill(errors.New("it does not end"))
	<-dst.Exited()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestExit: a library that hangs in C's exit does not keep a wire mover that has ended.
func TestExit(t *testing.T) {
	c, _ := config(t, 1, 2, 4096, pretend(t, "-DSTUB"), fake.Env+"=hangs") // loaded, and refused
	if _, err := mover.StartWire(t.Context(), c); err == nil || !strings.Contains(err.Error(), "stub") {
		t.Errorf("got %v", err)
	}
}

// TestReadFails: a read that failed half done ends its fetch after its agent, and the next one
// has an agent of its own.
func TestReadFails(t *testing.T) {
	o := pretend(t)
	c1, _ := config(t, 1, 2, 4096, o)
	src := start(t, c1)
	if err := src.Offer(staged.Exposed{Offer: 1, Bytes: 4096}); err != nil {
		t.Fatal(err)
	}
	for fault, want := range map[string]error{"fails": transfer.ErrPeer, "bad-make": transfer.ErrPeer, "bad-load": transfer.ErrPeer, "bad-prep": nil} {
		c2, _ := config(t, 2, 2, 4096, o, fake.Env+"="+fault)
		dst := start(t, c2)
		for range 3 {
			err := <-fetched(dst, staged.Fetching{Addr: src.Addr(), Of: 1, Offer: 1, Bytes: 4096})
			if err == nil || want != nil && !errors.Is(err, want) {
				t.Errorf("%s: got %v", fault, err)
			}
		}
	}
}

// TestReadCrashes: the reader's own process dies in the library, and its fetches end with it.
func TestReadCrashes(t *testing.T) {
	o := pretend(t)
	c1, _ := config(t, 1, 2, 4096, o)
	c2, _ := config(t, 2, 2, 4096, o, fake.Env+"=crash")
	src, dst := start(t, c1), start(t, c2)
	if err := src.Offer(staged.Exposed{Offer: 1, Bytes: 4096}); err != nil {
		t.Fatal(err)
	}
	if err := <-fetched(dst, staged.Fetching{Addr: src.Addr(), Of: 1, Offer: 1, Bytes: 4096}); !errors.Is(err, transfer.ErrMover) {
		t.Errorf("got %v", err)
	}
}

// TestStuck: a read that does not end keeps its fetch open, whatever is said, until the
// process has ended, or, when the peer is gone, the agent.
func TestStuck(t *testing.T) {
	for name, c := range map[string]struct {
		ends func(src, dst *mover.Wire)
		want error
	}{
		"its process is killed": {func(_, dst *mover.Wire) { dst.Kill(errors.New("by the test")) }, transfer.ErrMover},
		"the peer is gone":      {func(src, _ *mover.Wire) { src.Kill(errors.New("by the test")) }, transfer.ErrPeer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the latter takes its time
			stuck(t, c.ends, c.want)
		})
	}
}

func stuck(t *testing.T, ends func(src, dst *mover.Wire), want error) {
	o := pretend(t)
	c1, from := config(t, 1, 2, 4096, o)
	c2, into := config(t, 2, 2, 4096, o, fake.Env+"=stuck")
	src, dst := start(t, c1), start(t, c2)
	if err := src.Offer(staged.Exposed{Offer: 1, Bytes: 4096}); err != nil {
		t.Fatal(err)
	}
	from[0] = 1
	f := staged.Fetching{Addr: src.Addr(), Of: 1, Offer: 1, Bytes: 4096}
	done := make(chan error, 2)
	cancel := dst.Fetch(f, func(err error) { done <- err })
	for bytes.Equal(into[:1], []byte{0}) { // until it is being read
		runtime.Gosched()
	}
	cancel()
	f.Offer, f.Chunk = 2, 1
	for range 3 {
		if err := <-fetched(dst, f); !errors.Is(err, transfer.ErrPeer) { // behind the cancel
			t.Fatal(err)
		}
	}
	if len(done) > 0 {
		t.Fatalf("a fetch ended under its read: %v", <-done)
	}
	ends(src, dst)
	if err := <-done; !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
	if errors.Is(want, transfer.ErrPeer) && into[4095] != 0xee {
		t.Error("the fetch ended before its agent")
	}
}
