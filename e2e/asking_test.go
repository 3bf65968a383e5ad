package e2e

import (
	"context"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// askerArg makes the test binary an adapter, a child of a sidecar, that asks what its
// control plane, a test, says on a socket.
const askerArg = "asker"

// asker is that adapter. Its section is "socket: PATH".
type asker struct {
	path string
	err  error // of its control plane
}

func (*asker) Register(context.Context) (adapter.Info, error) {
	return adapter.Info{Name: "asker", Version: "1"}, nil
}

func (a *asker) Configure(_ context.Context, section []byte) error {
	var ok bool
	if a.path, ok = strings.CutPrefix(strings.TrimSpace(string(section)), "socket: "); !ok {
		return fmt.Errorf("%w: %q: want socket", handoff.ErrSection, section)
	}
	return nil
}

// Ask gives the calls to the control plane.
func (a *asker) Ask(calls adapter.Calls) {
	c, err := net.Dial("unix", a.path)
	if a.err = err; err != nil {
		return
	}
	s := rpc.NewServer()
	if a.err = s.Register(&Asked{calls}); a.err == nil {
		go s.ServeConn(c) // ends with the process
	}
}

func (a *asker) Sync(context.Context, adapter.State) error    { return a.err }
func (a *asker) Notify(context.Context, adapter.Update) error { return nil }
func (a *asker) Drain(context.Context) error                  { return nil }

// Asked is what a control plane may have its adapter ask.
type Asked struct{ calls adapter.Calls }

// Told is an answer.
type Told struct {
	Err, Why string // name of its sentinel, and text
	Phase    control.Phase
	Bytes    int64
	Known    int // hand-offs
	PID      int // of the adapter
}

func (t *Told) failed(err error) error {
	if t.PID = os.Getpid(); err != nil {
		t.Err, t.Why = errs.Name(err), err.Error()
	}
	return nil
}

func (a *Asked) Import(m handoff.Import, to *Told) error {
	got, err := a.calls.Import(context.Background(), m)
	to.Bytes = got.Bytes
	return to.failed(err)
}

func (a *Asked) Get(id handoff.ID, to *Told) error {
	i, err := a.calls.Get(context.Background(), id)
	to.Phase = i.Phase
	return to.failed(err)
}

func (a *Asked) List(q control.Query, to *Told) error {
	p, err := a.calls.List(context.Background(), q)
	to.Known = len(p.Infos)
	return to.failed(err)
}

func (a *Asked) Abort(m handoff.Manifest, to *Told) error {
	return to.failed(a.calls.Abort(context.Background(), m.ID, m.Key))
}

func (a *Asked) Release(m handoff.Manifest, to *Told) error {
	return to.failed(a.calls.Release(context.Background(), m.ID, m.Key))
}

// plane is the control plane of one group.
type plane struct {
	t    *testing.T
	l    net.Listener
	asks *rpc.Client // of the adapter's present life
}

// planes are one for each group, with their adapters.
func planes(t *testing.T, groups ...string) (map[string]*plane, dev.Adapters) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, all := t.TempDir(), map[string]*plane{}
	path := func(group string) string { return filepath.Join(dir, group) }
	for _, g := range groups {
		l, err := net.Listen("unix", path(g))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		all[g] = &plane{t: t, l: l}
	}
	return all, func(g dev.Group) []config.Adapter {
		return []config.Adapter{{Name: "ask", Command: []string{exe, askerArg}, Section: "socket: " + path(g.Name)}}
	}
}

// meet waits for the adapter's next life.
func (p *plane) meet() {
	p.t.Helper()
	c, err := p.l.Accept()
	if err != nil {
		p.t.Fatal(err)
	}
	p.asks = rpc.NewClient(c)
	p.t.Cleanup(func() { p.asks.Close() })
}

// ask has the adapter ask, and wants the error of that name; "" is none.
func (p *plane) ask(call string, arg any, want string) (got Told) {
	p.t.Helper()
	if err := p.asks.Call("Asked."+call, arg, &got); err != nil {
		p.t.Fatalf("%s: %v", call, err)
	}
	if got.Err != want {
		p.t.Errorf("%s: %q: %s, want %q", call, got.Err, got.Why, want)
	}
	return got
}

// adopted lets a request go on that was imported under label, and compares its tokens.
func (w *world) adopted(label string, tokens []int32) {
	w.t.Helper()
	var got []int32
	if _, err := generate(bounded(w.t), w.decode, front.Request{MaxNew: maxNew, Label: label, Mode: front.Adopt}, &got); err != nil {
		w.t.Fatal(err)
	}
	w.equal(label, tokens, got)
}

// TestAdapterAsks: what adapters ask, as children of real sidecars, is done or refused as
// it is for any other control plane; and what one had asked goes on when it is killed.
func TestAdapterAsks(t *testing.T) {
	all, adapters := planes(t, "prefill-0", "decode-0")
	w := up(t, "tp=1,role=prefill+tp=2,role=decode", "hybrid", func(o *dev.Options) { o.Adapters = adapters })
	src, dst := all["prefill-0"], all["decode-0"]
	src.meet()
	dst.meet()
	export := func(label string, tokens []int32) handoff.Import {
		man, err := w.export(bounded(t), w.prefill, label, tokens)
		if err != nil {
			t.Fatal(err)
		}
		return handoff.Import{Label: label, Manifest: man, Tokens: tokens}
	}
	if got := dst.ask("List", control.Query{}, ""); got.Known != 0 {
		t.Errorf("it lists %d", got.Known)
	}
	a := export("a", prompt(1, 40))
	if got := src.ask("Get", a.Manifest.ID, ""); got.Phase != control.Held {
		t.Errorf("the source says %v", got.Phase)
	}
	dst.ask("Get", a.Manifest.ID, "handoff.unknown")
	dst.ask("Abort", a.Manifest, "handoff.unknown")
	src.ask("Import", a, "handoff.role")
	if _, err := w.decode.Leader.Drain(bounded(t), false); err != nil {
		t.Fatal(err)
	}
	dst.ask("Import", a, "handoff.draining")
	if _, err := w.decode.Leader.Drain(bounded(t), true); err != nil {
		t.Fatal(err)
	}
	if got := dst.ask("Import", a, ""); got.Bytes == 0 {
		t.Error("nothing was moved")
	}
	if got := dst.ask("Get", a.Manifest.ID, ""); got.Phase != control.Admitted {
		t.Errorf("the destination says %v", got.Phase)
	}
	w.adopted("a", a.Tokens)

	b := export("b", prompt(2, 40))
	wrong := b.Manifest
	wrong.Key[0]++
	src.ask("Release", wrong, "handoff.gone")
	src.ask("Release", b.Manifest, "")
	dst.ask("Import", b, "handoff.gone")

	w.killedWhileItAsks(dst, export("c", prompt(3, 40)))
}

// killedWhileItAsks kills an adapter that waits for its import, whose source stands still.
func (w *world) killedWhileItAsks(dst *plane, c handoff.Import) {
	t := w.t
	t.Helper()
	source := watch(t, w.prefill.Ranks[0].Sidecar.PID)
	source.halt(t)
	call := dst.asks.Go("Asked.Import", c, &Told{}, make(chan *rpc.Call, 1))
	eventually(t, "the import has begun", func() bool {
		p, err := w.decode.Leader.List(bounded(t), control.Query{Role: control.Destination, Live: true})
		return err == nil && len(p.Infos) == 1
	})
	p := watch(t, dst.ask("List", control.Query{}, "").PID)
	p.signal(t, unix.SIGKILL)
	p.gone(t, "the adapter")
	if <-call.Done; call.Error == nil {
		t.Error("a dead adapter told how its import ended")
	}
	source.signal(t, unix.SIGCONT)
	dst.meet()
	eventually(t, "the next life hears that it was admitted", func() bool {
		return dst.ask("Get", c.Manifest.ID, "").Phase == control.Admitted
	})
	w.adopted("c", c.Tokens)
}
