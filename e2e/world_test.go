package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/internal/capture"
	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/control/client"
	"github.com/batonkv/baton/sidecar/handoff"
)

// block is the block size of every cluster here.
const block = 16

// world is a cluster with what a test needs around it.
type world struct {
	*dev.Cluster
	t               *testing.T
	model           model.Config
	prefill, decode *dev.Running // the first of each role
	log             *capture.Buffer

	mu    sync.Mutex // guards:
	shown map[string]chan handoff.Manifest
}

// up brings a cluster up until the end of the test. Its processes must not panic.
func up(t *testing.T, shards, name string, change ...func(*dev.Options)) *world {
	t.Helper()
	groups, err := dev.ParseShards(shards)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.ByName(name, 1)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, model: m, log: &capture.Buffer{}, shown: map[string]chan handoff.Manifest{}}
	opt := dev.Options{Groups: groups, Model: name, BlockTokens: block, Binary: binary, Stderr: w.log}
	for _, f := range change {
		f(&opt)
	}
	if w.Cluster, err = dev.Up(bounded(t), opt); err != nil {
		t.Fatalf("%v\n%s", err, w.log)
	}
	t.Cleanup(w.down)
	for _, g := range w.Groups {
		switch {
		case g.Role == discovery.Prefill && w.prefill == nil:
			w.prefill = g
		case g.Role == discovery.Decode && w.decode == nil:
			w.decode = g
		}
	}
	for _, g := range w.Groups {
		if g.Role == discovery.Prefill {
			go w.listen(t.Context(), g) // ends with the test
		}
	}
	return w
}

func (w *world) down() {
	if err := w.Close(); err != nil {
		w.t.Errorf("close: %v", err)
	}
	said := w.log.String()
	if strings.Contains(said, "panic:") || strings.Contains(said, "fatal error:") || strings.Contains(said, "DATA RACE") {
		w.t.Errorf("a process broke down:\n%s", said)
	}
	if w.t.Failed() {
		w.t.Logf("processes said:\n%s", said)
	}
}

// listen hands on the manifests of a prefill group.
func (w *world) listen(ctx context.Context, g *dev.Running) {
	for n, err := range g.Leader.Watch(ctx, control.Cursor{}) {
		if err != nil {
			return
		}
		if n.Kind == control.Exported {
			w.manifest(n.Label) <- *n.Manifest
		}
	}
}

// manifest is where the manifest of a label comes, once.
func (w *world) manifest(label string) chan handoff.Manifest {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shown[label] == nil {
		w.shown[label] = make(chan handoff.Manifest, 16)
	}
	return w.shown[label]
}

// export runs a prompt on a prefill group and returns its manifest.
func (w *world) export(ctx context.Context, g *dev.Running, label string, prompt []int32) (handoff.Manifest, error) {
	if _, err := generate(ctx, g, front.Request{Tokens: prompt, MaxNew: maxNew, Label: label, Mode: front.Export}, nil); err != nil {
		return handoff.Manifest{}, err
	}
	select {
	case m := <-w.manifest(label):
		return m, nil
	case <-ctx.Done():
		return handoff.Manifest{}, errors.New("no manifest came")
	}
}

// maxNew is how many tokens requests generate.
const maxNew = 12

// moved is one hand-off that went well.
type moved struct {
	handoff.Imported
	tokens   []int32
	forwards int32
}

// bring imports a manifest into a decode group and decodes.
func (w *world) bring(ctx context.Context, g *dev.Running, man handoff.Manifest, label string, prompt []int32) (m moved, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	adopted := make(chan error, 1)
	go func() {
		res, err := generate(ctx, g, front.Request{MaxNew: maxNew, Label: label, Mode: front.Adopt}, &m.tokens)
		m.forwards = res.Forwarded
		adopted <- err
	}()
	got, err := g.Leader.Import(ctx, handoff.Import{Label: label, Manifest: man, Tokens: prompt, Deadline: patience})
	if err != nil {
		cancel()
		<-adopted
		return m, err
	}
	err = <-adopted
	m.Imported = got
	return m, err
}

// handoff moves one prompt from prefill to decode and checks its tokens.
func (w *world) handoff(label string, prompt []int32) moved {
	w.t.Helper()
	return w.between(w.prefill, w.decode, label, prompt)
}

func (w *world) between(src, dst *dev.Running, label string, prompt []int32) moved {
	w.t.Helper()
	ctx := bounded(w.t)
	man, err := w.export(ctx, src, label, prompt)
	if err != nil {
		w.t.Fatalf("%s: export: %v", label, err)
	}
	m, err := w.bring(ctx, dst, man, label, prompt)
	if err != nil {
		w.t.Fatalf("%s: import: %v", label, err)
	}
	w.equal(label, prompt, m.tokens)
	if m.forwards != 0 {
		w.t.Errorf("%s: decode computed %d prompt tokens", label, m.forwards)
	}
	return m
}

// equal compares tokens with one engine that does both.
func (w *world) equal(label string, prompt, got []int32) {
	w.t.Helper()
	if want := w.reference(prompt); !slices.Equal(got, want) {
		w.t.Errorf("%s: tokens %v, one engine gives %v", label, got, want)
	}
}

func (w *world) reference(prompt []int32) []int32 {
	w.t.Helper()
	one := engine.Config{Model: w.model, BlockTokens: block, Types: types(w.prefill)}
	want, err := engine.ReferenceConverted(bounded(w.t), one, types(w.decode), prompt, maxNew)
	if err != nil {
		w.t.Fatal(err)
	}
	return want
}

func generate(ctx context.Context, g *dev.Running, req front.Request, got *[]int32) (front.Result, error) {
	c, err := front.Dial(ctx, g.Front())
	if err != nil {
		return front.Result{}, err
	}
	return c.Generate(ctx, req, func(t int32) {
		if got != nil {
			*got = append(*got, t)
		}
	})
}

// pool is what rank 0's allocator of a group holds.
func (w *world) pool(g *dev.Running) front.Pool {
	w.t.Helper()
	res, err := generate(bounded(w.t), g, front.Request{Mode: front.Stats}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return *res.Pool
}

// allFree waits until a group's allocator holds nothing.
func (w *world) allFree(g *dev.Running, blocks, slots int32) {
	w.t.Helper()
	if w.model.SSMLayers() == 0 {
		slots = 0
	}
	want := front.Pool{FreeBlocks: blocks, FreeSlots: slots}
	var got front.Pool
	defer func() {
		if got != want {
			w.t.Errorf("%s holds %+v", g.Name, got)
		}
	}()
	eventually(w.t, g.Name+": everything is free", func() bool { got = w.pool(g); return got == want })
}

// cert reads a certificate of the cluster: control, or GROUP-RANK.
func (w *world) cert(name string) *certs.Identified {
	w.t.Helper()
	dir := filepath.Join(w.Dir, "certs")
	id, err := certs.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+"-key.pem")}.Load(time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// dial calls the control service of any rank.
func (w *world) dial(addr, as string) *client.Client {
	w.t.Helper()
	c, err := client.Dial(addr, w.cert(as).Client(func(certs.Identity) error { return nil }))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

// counts adds up the peer messages that sidecars have sent, by type.
func (w *world) counts(groups ...*dev.Running) map[string]uint64 {
	w.t.Helper()
	sum := map[string]uint64{}
	for _, g := range groups {
		for _, k := range g.Ranks {
			st, err := w.dial(k.Sidecar.Addr, "control").Status(bounded(w.t))
			if err != nil {
				w.t.Fatal(err)
			}
			for name, n := range st.Counters {
				if what, ok := strings.CutPrefix(name, "sent."); ok {
					sum[what] += n
				}
			}
		}
	}
	return sum
}

// prompt makes n tokens that no other seed shares a beginning with.
func prompt(seed, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((seed*31 + i*7 + i*i) % 250)
	}
	return out
}
