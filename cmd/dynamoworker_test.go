package cmd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/plugins/adapter/dynamo/worker"
	"github.com/batonkv/baton/sidecar/handoff"
)

// TestOtherRole: a worker is not offered for an engine that tells the other role, whatever
// came before; one that does not tell keeps what it told.
func TestOtherRole(t *testing.T) {
	var role string
	var err error
	look := looker(func(context.Context) (front.Told, error) { return front.Told{Role: role}, err }, "prefill")
	for i, c := range []struct {
		role string
		err  error
		want error
	}{
		{"", front.ErrRequest, nil}, {"both", nil, nil}, {"decode", nil, handoff.ErrRole}, {"", front.ErrBusy, handoff.ErrRole},
		{"", &net.OpError{Op: "dial", Err: os.ErrNotExist}, handoff.ErrNotReady}, {"prefill", nil, nil}, {"", io.EOF, nil},
	} {
		role, err = c.role, c.err
		if _, got := look(t.Context()); !errors.Is(got, c.want) {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
}

// TestSilent: an engine that takes connections and says nothing does not answer.
func TestSilent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "front.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := looker(front.New(path).Tell, "decode")(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// TestTold: an engine that tells of an error with which requests end takes none, whichever
// it is; one that takes them tells how long they may be.
func TestTold(t *testing.T) {
	told := front.Told{Role: "decode", Closed: errors.New("some name of its own"), Room: 65}
	look := looker(func(context.Context) (front.Told, error) { return told, nil }, "decode")
	if _, err := look(t.Context()); !errors.Is(err, handoff.ErrDraining) {
		t.Error(err)
	}
	told.Closed = handoff.ErrPeer
	if _, err := look(t.Context()); !errors.Is(err, handoff.ErrPeer) || errors.Is(err, handoff.ErrDraining) {
		t.Error(err)
	}
	told.Closed = nil
	if room, err := look(t.Context()); err != nil || room != told.Room {
		t.Error(room, err)
	}
}

// TestOtherBlocks: an engine whose blocks have another length than the flag says is told of, once.
func TestOtherBlocks(t *testing.T) {
	var said bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	defer slog.SetDefault(old)
	var told front.Told
	ask := blocked(func(context.Context) (front.Told, error) { return told, nil }, 7)
	for _, c := range []struct {
		block int32
		want  int
	}{{0, 0}, {7, 0}, {16, 1}, {16, 1}, {0, 1}, {7, 1}, {32, 2}} {
		told.Block = c.block
		if got, err := ask(t.Context()); err != nil || got != told || strings.Count(said.String(), "--block-tokens") != c.want {
			t.Errorf("%+v: %+v %v: %s", c, got, err, &said)
		}
	}
}

// TestNeverFits: what can never fit an engine is the caller's fault, and keeps its name; a
// sidecar that is away is not.
func TestNeverFits(t *testing.T) {
	for _, c := range []struct {
		err        error
		kind, text string
	}{
		{fmt.Errorf("%w: %w: 257 blocks", front.ErrRequest, handoff.ErrCapacity), wire.InvalidArgument, "handoff.capacity: "},
		{fmt.Errorf("%w: full", handoff.ErrCapacity), wire.ResourceExhausted, "handoff.capacity: "},
		{fmt.Errorf("%w: %w", engine.ErrSidecar, errors.New("it is restarted")), wire.Unavailable, "handoff.peer: "},
	} {
		f, ok := errors.AsType[*wire.Fault](dynamo.Fault(refused(c.err)))
		if !ok || f.Kind() != c.kind || !strings.HasPrefix(f.Message, c.text) {
			t.Errorf("%v: %+v", c.err, f)
		}
	}
}

// TestEngineAway: a call of an engine that is not there can be tried elsewhere.
func TestEngineAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.sock")
	var e fronted
	if _, err := front.Dial(t.Context(), path); !errors.Is(refused(err), handoff.ErrNotReady) {
		t.Error(err)
	}
	e.c = &front.Client{}
	if _, _, err := e.Prefill(t.Context(), worker.Job{Label: "a", Tokens: []int32{1}, MaxNew: 2}); !errors.Is(err, handoff.ErrNotReady) {
		t.Error(err)
	}
}

// TestEngineKilled: so can a call in whose middle the engine ends.
func TestEngineKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "front.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = bufio.NewReader(conn).ReadString('\n')
			_, _ = io.WriteString(conn, "{\"token\":7}\n")
			conn.Close()
		}
	}()
	tokens := 0
	_, err = fronted{front.New(path)}.Decode(t.Context(), worker.Job{Tokens: []int32{1}, MaxNew: 2}, nil, func(int32, *float32) error { tokens++; return nil })
	if f, ok := errors.AsType[*wire.Fault](dynamo.Fault(err)); !ok || f.Kind() != wire.Unavailable || !strings.HasPrefix(f.Message, "handoff.peer: ") || tokens != 1 {
		t.Errorf("%v after %d tokens", err, tokens)
	}
}

// TestDynamoWorkerFlags: what is wrong is told before anything is dialled.
func TestDynamoWorkerFlags(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "dynamo.yaml")
	if err := os.WriteFile(config, []byte("namespace: dynamo\ndiscovery: file\nfolder: "+dir), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("namespase: dynamo"), 0o600); err != nil {
		t.Fatal(err)
	}
	tells := filepath.Join(dir, "tells.yaml")
	if err := os.WriteFile(tells, []byte("namespace: dynamo\ndiscovery: file\nkv: {events: zmq}\nfolder: "+dir), 0o600); err != nil {
		t.Fatal(err)
	}
	good := dynamoWorkerFlags{role: "decode", front: "x.sock", config: config, model: "tiny", block: 16, maxNew: 1, system: "127.0.0.1:0", folder: "../examples/engine/tokenizer"}
	if c, err := good.settings(); err != nil || c.Component != "backend" || c.Assets == nil {
		t.Fatalf("%+v %v", c, err)
	}
	for want, change := range map[string]func(*dynamoWorkerFlags){
		"--role":         func(f *dynamoWorkerFlags) { f.role = "both" },
		"all three":      func(f *dynamoWorkerFlags) { f.model = "" },
		"--block-tokens": func(f *dynamoWorkerFlags) { f.block = 0 },
		"--context":      func(f *dynamoWorkerFlags) { f.context = -1 },
		`"Foo.Bar"`:      func(f *dynamoWorkerFlags) { f.component = "Foo.Bar" },
		"--system":       func(f *dynamoWorkerFlags) { f.system = "nonsense" },
		"--config":       func(f *dynamoWorkerFlags) { f.config = "none" },
		"namespase":      func(f *dynamoWorkerFlags) { f.config = bad },
		"--group":        func(f *dynamoWorkerFlags) { f.config = tells },
		"config.json":    func(f *dynamoWorkerFlags) { f.folder = dir },
	} {
		f := good
		change(&f)
		_, err := f.settings()
		if u, ok := errors.AsType[*UsageError](err); !ok || !strings.Contains(u.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	t.Setenv("DYN_SYSTEM_PORT", "9090")
	f := good
	f.system = ""
	if c, err := f.settings(); err != nil || c.System != ":9090" {
		t.Errorf("%q %v", c.System, err)
	}
}
