package nixl

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/nixl/fake"
	"github.com/batonkv/baton/transfer/transfertest"
)

const envChild = "NIXL_TEST_CHILD"

// TestMain makes the test binary the wire mover of the tests, as NIXL runs in production.
func TestMain(m *testing.M) {
	if os.Getenv(envChild) == "" {
		os.Exit(m.Run())
	}
	if err := mover.ServeWire(context.Background(), lifeline.FirstExtra, open); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func open(s mover.Setup, arena []byte) (staged.Wire, error) {
	var o Options
	if err := json.Unmarshal(s.Options, &o); err != nil {
		return nil, err
	}
	return New(Config{Wire: s.Wire, Arena: arena, Chunk: s.Chunk, Listen: s.Listen, Options: o})
}

// pretend is how the fake library is opened, which flags change.
func pretend(t testing.TB, flags ...string) Options {
	t.Helper()
	return Options{Library: fake.Build(t, flags...), Backend: DefaultBackend}
}

// real is how the real library is opened.
func real(t testing.TB) Options {
	t.Helper()
	return Options{Library: need.NIXL(t), Backend: DefaultBackend}
}

// config is that of a wire mover over an arena of so many chunks, which is mapped here too.
func config(t testing.TB, id staged.Incarnation, chunks int32, chunk int64, o Options, env ...string) (mover.WireConfig, []byte) {
	t.Helper()
	n := int64(chunks) * chunk
	mem, b := transfertest.Arena(t, n)
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return mover.WireConfig{Command: []string{os.Args[0]}, Env: append(append(os.Environ(), envChild+"=1", "GORACE=atexit_sleep_ms=0"), env...),
		Arena: mem,
		Setup: mover.Setup{Transport: "nixl", Wire: id, Group: "decode-0", Bytes: n, Chunk: chunk, Listen: "127.0.0.1:0", Options: text}}, b
}

func start(t testing.TB, c mover.WireConfig) *mover.Wire {
	t.Helper()
	w, err := mover.StartWire(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Kill(nil)
		<-w.Exited()
	})
	return w
}

// fetched is how a fetch of an offer that is the whole of a chunk ends.
func fetched(w staged.Wire, f staged.Fetching) <-chan error {
	done := make(chan error, 2) // a second call would show
	w.Fetch(f, func(err error) { done <- err })
	return done
}
