package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/host"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// pluginArgs is how a host starts the plugin of a cluster.
func (w *world) pluginArgs(more ...string) []string {
	dir := filepath.Join(w.Dir, "certs")
	return append([]string{binary, "plugin", "--cluster", "dev", "--etcd.endpoints", w.Etcd,
		"--tls.ca", filepath.Join(dir, "ca.pem"), "--tls.cert", filepath.Join(dir, "control.pem"), "--tls.key", filepath.Join(dir, "control-key.pem"),
		"--log-level", "debug"}, more...)
}

// host opens a plugin of the cluster until the end of the test.
func (w *world) host(command []string, change ...func(*host.Config)) *host.Host {
	w.t.Helper()
	c := host.Config{Command: command, Stderr: w.log}
	for _, f := range change {
		f(&c)
	}
	h, err := host.Open(bounded(w.t), c)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, w.log)
	}
	w.t.Cleanup(func() {
		if err := h.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return h
}

// TestPlugin is a control plane's whole way through the plugin: it sees the groups, hears
// of an exported hand-off, brings it in, and asks what became of it.
func TestPlugin(t *testing.T) {
	w := up(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid")
	for name, change := range map[string]func(*host.Config){"mtls": func(*host.Config) {}, "plain": func(c *host.Config) { c.Plain = true }} {
		t.Run(name, func(t *testing.T) {
			h := w.host(w.pluginArgs(), change)
			ctx, cancel := context.WithCancel(bounded(t))
			defer cancel()
			complete(t, ctx, h, w.decode, w.prefill)
			d, err := h.Cluster().Describe(ctx, w.prefill.Name)
			if err != nil || !d.Status.Ready || len(d.Geometry.Shards) == 0 {
				t.Fatalf("describe: %+v, %v", d, err)
			}
			man := exported(t, ctx, h, w, "via-"+name)
			adopted := make(chan error, 1)
			go func() {
				_, err := generate(ctx, w.decode, front.Request{MaxNew: maxNew, Label: man.Label, Mode: front.Adopt}, nil)
				adopted <- err
			}()
			got, err := h.Handoff().Import(ctx, w.decode.Name, handoff.Import{Label: man.Label, Manifest: man, Tokens: prompt(5, 40)})
			if err != nil || got.ID != man.ID {
				t.Fatalf("import: %+v, %v", got, err)
			}
			if err := <-adopted; err != nil {
				t.Fatal(err)
			}
			if i, err := h.Handoff().Get(ctx, w.decode.Name, man.ID); err != nil || i.Phase != control.Admitted {
				t.Errorf("get: %+v, %v", i, err)
			}
			if l, err := h.Cluster().Links(ctx, w.decode.Name, 0, control.LinksQuery{}); err != nil || len(l.Links) != 2 || l.Links[0].Peer.Group != w.prefill.Name || l.Links[1].Choice.Transport != "shm" {
				t.Errorf("links: %+v, %v", l, err)
			}
			if p, err := h.Handoff().List(ctx, w.decode.Name, control.Query{}); err != nil || len(p.Infos) == 0 {
				t.Errorf("list: %+v, %v", p, err)
			}
			q := plugins.PlanQuery{Source: plugins.Side{Group: w.prefill.Name}, Destination: plugins.Side{Group: w.decode.Name}}
			if p, err := h.Reshard().Plan(ctx, q); err != nil || len(p.Moves) == 0 {
				t.Errorf("plan: %+v, %v", p, err)
			}
			for _, f := range []plugins.Format{plugins.Text, plugins.JSON, plugins.SVG} {
				if b, err := h.Reshard().Explain(ctx, q, 100, f); err != nil || len(b) < 100 {
					t.Errorf("explain %d: %q, %v", f, b, err)
				}
			}
			if _, err := h.Handoff().Get(ctx, "nobody", man.ID); !errors.Is(err, handoff.ErrGroup) {
				t.Errorf("an unknown group: %v", err)
			}
		})
	}
}

// complete waits until the plugin shows every rank of these groups, sorted by name.
func complete(t *testing.T, ctx context.Context, h *host.Host, groups ...*dev.Running) {
	t.Helper()
	for gs, err := range h.Cluster().Watch(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		ok := len(gs) == len(groups)
		for i := range gs {
			ok = ok && gs[i].Complete && gs[i].Name == groups[i].Name && gs[i].Size == groups[i].TP && gs[i].Ranks[groups[i].TP-1].Addr != ""
		}
		if ok {
			break
		}
	}
	if gs, err := h.Cluster().Groups(ctx); err != nil || len(gs) != len(groups) {
		t.Fatalf("groups: %+v, %v", gs, err)
	}
}

// exported has the prefill group export a prompt and hears its manifest by the plugin.
func exported(t *testing.T, ctx context.Context, h *host.Host, w *world, label string) handoff.Manifest {
	t.Helper()
	ran := make(chan error, 1)
	go func() {
		_, err := generate(ctx, w.prefill, front.Request{Tokens: prompt(5, 40), MaxNew: maxNew, Label: label, Mode: front.Export}, nil)
		ran <- err
	}()
	for n, err := range h.Handoff().Watch(ctx, w.prefill.Name, control.Cursor{}) {
		if err != nil {
			t.Fatal(err)
		}
		if n.Kind == control.Exported && n.Label == label {
			if err := <-ran; err != nil {
				t.Fatal(err)
			}
			return *n.Manifest
		}
	}
	t.Fatal("the watch ended")
	return handoff.Manifest{}
}
