package engine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/batonkv/baton/proto/codec"
	enginev1 "github.com/batonkv/baton/proto/engine/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/engine"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/sockfd"
)

// raw opens a stream without the client library.
func raw(t *testing.T, dir string) enginev1.Engine_SessionClient {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, engine.Socket), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(codec.MaxMessage), grpc.MaxCallSendMsgSize(2*codec.MaxMessage)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s, err := enginev1.NewEngineClient(conn).Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func send(t *testing.T, s enginev1.Engine_SessionClient, m handoff.FromEngine) {
	t.Helper()
	p, err := codec.EncodeFromEngine(m)
	if err == nil {
		err = s.Send(p)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func rest(s enginev1.Engine_SessionClient) error {
	for {
		if _, err := s.Recv(); err != nil {
			return errs.FromStatus(err)
		}
	}
}

func TestRudeEngines(t *testing.T) {
	dir, _, h := start(t, engine.Options{Sessions: 2})
	s := raw(t, dir)
	send(t, s, handoff.BuffersReady{})
	if err := rest(s); !errors.Is(err, handoff.ErrEngine) {
		t.Errorf("no attach: %v", err)
	}
	s = raw(t, dir)
	send(t, s, handoff.Attach{Group: "p"})
	<-h.events
	send(t, s, handoff.Attach{Group: "p"})
	if err := rest(s); !errors.Is(err, handoff.ErrEngine) {
		t.Errorf("two attaches: %v", err)
	}
	if err := h.closed(t); !errors.Is(err, handoff.ErrEngine) {
		t.Errorf("handler: %v", err)
	}
	for name, m := range map[string]*enginev1.FromEngine{
		"empty":     {},
		"long name": {Message: &enginev1.FromEngine_Announce{Announce: &enginev1.Announce{Label: strings.Repeat("x", 300)}}},
	} {
		s = raw(t, dir)
		send(t, s, handoff.Attach{Group: "p"})
		<-h.events
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
		if err := rest(s); !errors.Is(err, handoff.ErrBound) {
			t.Errorf("%s: %v", name, err)
		}
		if err := h.closed(t); !errors.Is(err, handoff.ErrBound) {
			t.Errorf("%s: handler: %v", name, err)
		}
	}
}

func TestEngineThatDoesNotReadIsCutOff(t *testing.T) {
	dir, _, h := start(t, engine.Options{Queue: 2})
	raw := raw(t, dir)
	send(t, raw, handoff.Attach{Group: "p"})
	s := (<-h.events).s
	big := handoff.Decision{Kind: handoff.Reserve, Hashes: make([]uint64, 1<<17)}
	var err error
	for i := 0; err == nil; i++ {
		if i > 1000 {
			t.Fatal("never full")
		}
		err = s.Send(big)
	}
	if !errors.Is(err, pump.ErrFull) {
		t.Fatalf("got %v", err)
	}
	if err := h.closed(t); !errors.Is(err, pump.ErrFull) {
		t.Fatalf("handler: %v", err)
	}
	if err := rest(raw); err == nil {
		t.Fatal("the stream goes on")
	}
}

// hung is a handler whose Message waits, so its session reads no more.
type hung struct {
	handler
	gate chan struct{}
}

func (h *hung) Message(s *engine.Session, m handoff.FromEngine) {
	if _, ready := m.(handoff.BuffersReady); ready {
		_ = s.Send(handoff.MoverStarted{PID: int32(os.Getpid())})
		return
	}
	<-h.gate
}

func TestSessionOfASidecarThatDoesNotReadEnds(t *testing.T) {
	dir := t.TempDir()
	h := &hung{handler{srv: make(chan *engine.Server, 1), events: make(chan event, 8)}, make(chan struct{})}
	srv, err := engine.Listen(dir, h, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, srv)
	defer close(h.gate)
	h.srv <- srv
	c, err := client.Dial(ctxOf(t), client.Config{Dir: dir, RedialMin: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	big := handoff.Reserved{Blocks: make([]int32, 1<<10)}
	for range 10000 { // more than fit the queue and the socket; none waits
		if err := c.Send(big); err != nil {
			t.Fatal(err)
		}
	}
	if err := away(c); !errors.Is(err, pump.ErrFull) {
		t.Fatalf("session %v", err)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	dir := t.TempDir()
	refused := make(chan sockfd.Cred, 64)
	srv, err := engine.ListenAllow(dir, &handler{}, engine.Options{}, func(c sockfd.Cred) error {
		refused <- c
		return errors.New("a stranger")
	})
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, srv)
	if _, err := client.Dial(ctxOf(t), client.Config{Dir: dir}); !errors.Is(err, handoff.ErrPeer) {
		t.Errorf("stream: %v", err)
	}
	if got := <-refused; int(got.PID) != os.Getpid() || int(got.UID) != os.Getuid() {
		t.Errorf("the kernel said %+v", got)
	}
	c, err := sockfd.Dial(ctxOf(t), filepath.Join(dir, engine.FDSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := sockfd.Recv(c, make([]byte, 1)); err == nil {
		t.Error("a stranger's descriptor connection stays")
	}
	if srv.RefusedFDs() != 1 {
		t.Errorf("%d refusals counted, want 1", srv.RefusedFDs())
	}
	for _, name := range []string{engine.Socket, engine.FDSocket} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, st.Mode(), err)
		}
	}
}

func TestSocketsOfOthers(t *testing.T) {
	dir, srv, h := start(t, engine.Options{})
	if _, err := engine.Listen(dir, h, engine.Options{}); !errors.Is(err, sockfd.ErrSocket) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("a live owner: %v", err)
	}
	shut(t, srv)
	for _, name := range []string{engine.Socket, engine.FDSocket} { // as a killed sidecar leaves them
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	srv, err := engine.Listen(dir, h, engine.Options{})
	if err != nil {
		t.Fatalf("stale sockets: %v", err)
	}
	shut(t, srv)
	if err := os.WriteFile(filepath.Join(dir, engine.Socket), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Listen(dir, h, engine.Options{}); !errors.Is(err, sockfd.ErrSocket) {
		t.Errorf("a file: %v", err)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, engine.Socket)); string(got) != "mine" {
		t.Error("somebody's file was removed")
	}
	if _, err := engine.Listen(filepath.Join(dir, "absent"), h, engine.Options{}); !errors.Is(err, sockfd.ErrSocket) {
		t.Errorf("no directory: %v", err)
	}
}

// offer sends one packet and returns the answer.
func offer(t *testing.T, c *net.UnixConn, packet []byte, fd int) byte {
	t.Helper()
	if err := sockfd.Send(c, packet, fd); err != nil {
		t.Fatal(err)
	}
	var answer [1]byte
	if _, _, err := sockfd.Recv(c, answer[:]); err != nil {
		t.Fatal(err)
	}
	return answer[0]
}

func packet(key uint64, id uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, key), id)
}

func pipe(t *testing.T) (r, w *os.File) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r, w
}

// wantEOF fails when somebody still holds the write end of r's pipe.
func wantEOF(t *testing.T, r *os.File) {
	t.Helper()
	if n, _ := r.Read(make([]byte, 1)); n != 0 {
		t.Error("a descriptor stayed open")
	}
}

func TestDescriptors(t *testing.T) {
	dir, srv, h := start(t, engine.Options{})
	s := raw(t, dir)
	send(t, s, handoff.Attach{Group: "p", Buffers: []handoff.BufferDecl{{ID: 1}, {ID: 2, GPU: &handoff.GPUMemory{Chunks: []int64{1, 1}}}, {ID: 5, GPU: &handoff.GPUMemory{}}}})
	<-h.events
	if _, err := s.Recv(); err != nil { // Attached: the key belongs to the session
		t.Fatal(err)
	}
	r, w := pipe(t)
	c, err := sockfd.Dial(ctxOf(t), filepath.Join(dir, engine.FDSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i, step := range []struct {
		packet []byte
		with   bool
		want   byte
	}{
		{packet(fdKey+1, 1), true, engine.FDUnknown},
		{packet(fdKey, 1), false, engine.FDBad},
		{[]byte("short"), true, engine.FDBad},
		{packet(fdKey, 1), true, engine.FDKept},
		{packet(fdKey, 1), true, engine.FDExtra},
		{packet(fdKey, 2), true, engine.FDKept},
		{packet(fdKey, 2), true, engine.FDKept},
		{packet(fdKey, 2), true, engine.FDExtra}, // two were declared
		{packet(fdKey, 3), true, engine.FDExtra}, // none was
		{packet(fdKey, 5), true, engine.FDExtra}, // by handle
	} {
		fd := -1
		if step.with {
			fd = int(w.Fd())
		}
		if got := offer(t, c, step.packet, fd); got != step.want {
			t.Errorf("step %d: answer %d, want %d", i, got, step.want)
		}
	}
	if srv.RefusedFDs() != 7 {
		t.Errorf("%d refusals counted, want 7", srv.RefusedFDs())
	}
	two := unix.UnixRights(int(w.Fd()), int(w.Fd()))
	if _, _, err := c.WriteMsgUnix(packet(fdKey, 4), two, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := sockfd.Recv(c, make([]byte, 1)); err == nil {
		t.Error("two descriptors in one packet were answered")
	}
	w.Close()
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := h.closed(t); err != nil {
		t.Fatal(err)
	}
	wantEOF(t, r) // nobody took them: with the session they are closed
	if got := srv.TakeFDs(fdKey); got != nil {
		t.Errorf("a forgotten key gave %v", got)
	}
}
