package route

import (
	"context"
	"crypto/tls"
	"iter"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/mem"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// sidecar is one leader's control service, which counts its connections.
type sidecar struct {
	control.Service
	log   *control.Log
	geo   control.Geometry
	st    control.Status
	conns atomic.Int32
	addr  string
	stop  func()
}

func (s *sidecar) Status(context.Context) (control.Status, error)     { return s.st, nil }
func (s *sidecar) Geometry(context.Context) (control.Geometry, error) { return s.geo, nil }
func (s *sidecar) Links(_ context.Context, q control.LinksQuery) (control.Links, error) {
	l := control.Links{Self: s.st.Self}
	if q.Meet {
		l.More = 1
	}
	return l, nil
}
func (s *sidecar) Import(_ context.Context, m handoff.Import) (handoff.Imported, error) {
	return handoff.Imported{Label: m.Label, Bytes: int64(s.st.Self.Incarnation)}, nil
}
func (s *sidecar) Watch(ctx context.Context, from control.Cursor) iter.Seq2[control.Notice, error] {
	return s.log.Watch(ctx, from)
}

// counted counts what is open.
type counted struct {
	net.Listener
	open *atomic.Int32
}

func (c counted) Accept() (net.Conn, error) {
	n, err := c.Listener.Accept()
	if err == nil {
		c.open.Add(1)
		n = &closing{Conn: n, open: c.open}
	}
	return n, err
}

type closing struct {
	net.Conn
	open *atomic.Int32
	done atomic.Bool
}

func (c *closing) Close() error {
	if !c.done.Swap(true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}

func newCA(t *testing.T) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func leaf(t *testing.T, ca *certs.CA, id certs.Identity) *certs.Identified {
	t.Helper()
	pair, err := ca.Leaf(certs.LeafConfig{Identity: id, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	own, err := pair.Identified(ca.Cert, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// world is a registry and the means to make sidecars.
type world struct {
	t      *testing.T
	ca     *certs.CA
	own    *tls.Config // of a control plane
	reg    *mem.Registry
	router *Router
}

func newWorld(t *testing.T, change ...func(*Config)) *world {
	store := mem.New(time.Now, time.Hour)
	w := &world{t: t, ca: newCA(t), reg: store.Open(mem.Config{})}
	w.own = leaf(t, w.ca, certs.Identity{Kind: certs.Control, Name: "dev"}).Client(nil)
	c := Config{Source: Discovery(w.reg, "c"), TLS: func(discovery.Record) *tls.Config { return w.own }}
	for _, f := range change {
		f(&c)
	}
	w.router = New(c)
	t.Cleanup(func() {
		if err := w.router.Close(); err != nil {
			t.Error(err)
		}
		w.reg.Close()
	})
	return w
}

// sidecar serves group's leader; incarnation is its process.
func (w *world) sidecar(ca *certs.CA, group string, incarnation handoff.Incarnation) *sidecar {
	w.t.Helper()
	s := &sidecar{log: control.NewLog(incarnation, 16), st: control.Status{Self: handoff.Member{Group: group, Incarnation: incarnation}}}
	server := leaf(w.t, ca, certs.SidecarID("c", "t", group, 0)).Server(nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	s.addr = l.Addr().String()
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(server)))
	control.Register(g, s, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(counted{l, &s.conns})
	}()
	s.stop = func() { g.Stop(); <-done }
	w.t.Cleanup(s.stop)
	return s
}

// register makes the record of a rank, the last of its group; the caller closes it.
func (w *world) register(group string, rank int32, addr string, incarnation handoff.Incarnation) discovery.Registration {
	w.t.Helper()
	reg, err := w.reg.Register(bounded(w.t), discovery.Record{Cluster: "c", Pool: "p", Group: group, Rank: rank, Incarnation: uint64(incarnation),
		Instance: 4, Ranks: rank + 1, Role: discovery.Decode, Tenant: "t", Host: "h", PID: 1, Started: 1, Addr: addr, Geometry: "ab", Transports: []string{"shm"}})
	if err != nil {
		w.t.Fatal(err)
	}
	return reg
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// until watches the cluster until ok.
func (w *world) until(ok func([]plugins.Group) bool) {
	w.t.Helper()
	for gs, err := range w.router.Cluster().Watch(bounded(w.t)) {
		if err != nil {
			w.t.Fatal(err)
		}
		if ok(gs) {
			return
		}
	}
}

func (w *world) shows(n int) { w.until(func(gs []plugins.Group) bool { return len(gs) == n }) }
