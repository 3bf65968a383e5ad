package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/etcd"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/host"
	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// all makes every call of a host that names one group, but Watch.
func all(ctx context.Context, h *host.Host, group string) map[string]error {
	id := handoff.ID{Group: group, Instance: 1, Leader: 2, N: 3}
	_, im := h.Handoff().Import(ctx, group, handoff.Import{Label: "r", Manifest: handoff.Manifest{ID: id}})
	_, ge := h.Handoff().Get(ctx, group, id)
	_, li := h.Handoff().List(ctx, group, control.Query{})
	_, de := h.Cluster().Describe(ctx, group)
	_, dr := h.Cluster().Drain(ctx, group, false)
	q := plugins.PlanQuery{Source: plugins.Side{Group: group}, Destination: plugins.Side{Layout: "tp=2"}}
	_, pl := h.Reshard().Plan(ctx, q)
	_, ex := h.Reshard().Explain(ctx, q, 1, plugins.Text)
	return map[string]error{"import": im, "get": ge, "list": li, "describe": de, "drain": dr, "plan": pl, "explain": ex,
		"abort": h.Handoff().Abort(ctx, group, id), "release": h.Handoff().Release(ctx, id, handoff.Key{}), "do": h.Cluster().Do(ctx, group, handoff.ActionPause),
		"weights": h.Cluster().SetWeightsEpoch(ctx, group, 1), "reset": h.Cluster().Reset(ctx, group)}
}

// refused wants every call to fail as want alone, for a reason that has says in it.
func refused(t *testing.T, h *host.Host, group string, want error, says string) {
	t.Helper()
	for call, err := range all(bounded(t), h, group) {
		is(t, call+" of "+group, err, want)
		if err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s of %s: %v does not say %q", call, group, err, says)
		}
	}
}

// is wants err to be want and nothing that a host would decide otherwise by.
func is(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
	for _, other := range []error{handoff.ErrInDoubt, handoff.ErrHost, handoff.ErrDraining, handoff.ErrGroup, handoff.ErrDenied, handoff.ErrNotReady, handoff.ErrGone} {
		if other != want && errors.Is(err, other) {
			t.Errorf("%s: %v is also %v", what, err, other)
		}
	}
}

// foreign registers a sidecar of another cluster, with other certificates, as a group of
// this one.
func (w *world) foreign(name string) {
	w.t.Helper()
	other := up(w.t, "tp=1,role=decode", "attention")
	c := etcd.Default()
	c.Endpoints = []string{w.Etcd}
	reg, err := etcd.Open(bounded(w.t), c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := reg.Close(); err != nil {
			w.t.Error(err)
		}
	})
	if _, err := reg.Register(bounded(w.t), discovery.Record{Cluster: "dev", Pool: "dev", Group: name, Incarnation: 1, Role: discovery.Decode,
		Tenant: "default", Host: "elsewhere", PID: 1, Started: 1, Addr: other.decode.Ranks[0].Sidecar.Addr}); err != nil {
		w.t.Fatal(err)
	}
}

// TestRefusedByGroup: what a group cannot do for a host is an error of its own in the
// host's process: a group that drains, is dead, is unknown, or is of another cluster.
func TestRefusedByGroup(t *testing.T) {
	w := up(t, "tp=1,role=prefill+tp=1,dp=3,role=decode", "attention", func(o *dev.Options) { o.TTL = 10 * time.Minute }) // the dead stay registered
	open, draining, dead := w.decode, w.Groups[2], w.Groups[3]
	h, ctx := w.host(w.pluginArgs()), bounded(t)
	man, tokens := exported(t, ctx, h, w, "refused"), prompt(5, 40)
	bring := func(g *dev.Running) error {
		_, err := h.Handoff().Import(ctx, g.Name, handoff.Import{Label: man.Label, Manifest: man, Tokens: tokens, Deadline: 5 * time.Second})
		return err
	}
	if d, err := h.Cluster().Drain(ctx, draining.Name, false); err != nil || !d.Draining {
		t.Fatalf("drain: %+v, %v", d, err)
	}
	is(t, "import by a draining group", bring(draining), handoff.ErrDraining)
	_, err := h.Handoff().Get(ctx, draining.Name, man.ID)
	is(t, "get of what it refused", err, handoff.ErrUnknown)
	is(t, "import by the group that exports", bring(w.prefill), handoff.ErrRole)

	p := watch(t, dead.Ranks[0].Sidecar.PID)
	p.signal(t, unix.SIGKILL)
	p.gone(t, "the leader of "+dead.Name)
	refused(t, h, dead.Name, handoff.ErrPeer, dead.Ranks[0].Sidecar.Addr)
	refused(t, h, "decode-9", handoff.ErrGroup, "decode-9")
	w.foreign("foreign")
	eventually(t, "the plugin sees the foreign group", func() bool {
		_, err := h.Cluster().Describe(ctx, "foreign")
		return !errors.Is(err, handoff.ErrGroup)
	})
	refused(t, h, "foreign", handoff.ErrDenied, "foreign")
	for group, want := range map[string]error{"decode-9": handoff.ErrGroup, "foreign": handoff.ErrDenied} {
		for _, err := range h.Handoff().Watch(ctx, group, control.Cursor{}) {
			is(t, "watch of "+group, err, want)
		}
	}

	// The hand-off is still there for a group that can take it, once.
	if err := bring(open); err != nil {
		t.Errorf("import by an open group: %v", err)
	}
	eventually(t, "it is over at its source", func() bool {
		i, err := h.Handoff().Get(ctx, w.prefill.Name, man.ID)
		return err == nil && i.Phase == control.Ended
	})
	if d, err := h.Cluster().Drain(ctx, draining.Name, true); err != nil || d.Draining {
		t.Fatalf("resume: %+v, %v", d, err)
	}
	is(t, "import of what is over", bring(draining), handoff.ErrGone)
	is(t, "release with another key", h.Handoff().Release(ctx, man.ID, handoff.Key{1}), handoff.ErrGone)
	if err := h.Handoff().Release(ctx, man.ID, man.Key); err != nil {
		t.Errorf("release of what is over: %v", err)
	}
}

// TestRefusedByCertificate: who is no control plane of this cluster is denied everything.
func TestRefusedByCertificate(t *testing.T) {
	w := up(t, "tp=1,role=decode", "attention")
	other, err := certs.NewCA("other", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := certs.ReadCA(filepath.Join(w.Dir, "certs"))
	if err != nil {
		t.Fatal(err)
	}
	theirs := t.TempDir()
	if err := other.Write(theirs); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		ca  *certs.CA
		dir string
		id  certs.Identity
	}{
		"a rank":                    {ca, filepath.Join(w.Dir, "certs"), certs.SidecarID("dev", "default", "prefill-9", 0)},
		"a control plane elsewhere": {other, theirs, certs.Identity{Kind: certs.Control, Name: "router"}},
	} {
		t.Run(name, func(t *testing.T) {
			cert, key := w.leaf(c.ca, c.id, strings.ReplaceAll(name, " ", "-"))
			h := w.host(w.pluginArgs("--tls.ca", filepath.Join(c.dir, "ca.pem"), "--tls.cert", cert, "--tls.key", key))
			eventually(t, "the plugin sees the group", func() bool {
				_, err := h.Cluster().Describe(bounded(t), w.decode.Name)
				return !errors.Is(err, handoff.ErrGroup)
			})
			refused(t, h, w.decode.Name, handoff.ErrDenied, w.decode.Name)
		})
	}
}
