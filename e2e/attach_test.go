package e2e

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
)

// memfd makes a file of n bytes, sealed against changes of its size or not.
func memfd(t *testing.T, n int64, seal bool) int {
	t.Helper()
	fd, err := unix.MemfdCreate("e2e", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, n); err != nil {
		t.Fatal(err)
	}
	if seal {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

// badAttach is one wrong statement of an engine and what the refusal has to say.
type badAttach struct {
	what   string
	change func(a *handoff.Attach, fds []int)
	say    []string
}

// badAttaches are of an engine whose first shard is of state.
func badAttaches(t *testing.T, state string) []badAttach {
	return []badAttach{
		{"another group", func(a *handoff.Attach, _ []int) { a.Group = "other" }, []string{`group is "other"`, `"spare"`}},
		{"another rank", func(a *handoff.Attach, _ []int) { a.Rank, a.Ranks = 1, 2 }, []string{"rank is 1", "rank 0"}},
		{"no instance", func(a *handoff.Attach, _ []int) { a.Instance = 0 }, []string{"group_instance", "random number"}},
		{"overlapping boxes", func(a *handoff.Attach, _ []int) { a.Shards = append(a.Shards, a.Shards[0]) }, []string{"overlap", state}},
		{"box outside the model", func(a *handoff.Attach, _ []int) { a.Shards[0].Box.Units.Hi += 100 }, []string{"units", state}},
		{"buffer too small", func(a *handoff.Attach, fds []int) {
			a.Buffers[0].Len /= 2
			fds[0] = memfd(t, a.Buffers[0].Len, true)
		}, []string{"buffer 0", "attn.", "too small"}},
		{"file shorter than its buffer", func(a *handoff.Attach, fds []int) { fds[0] = memfd(t, a.Buffers[0].Len/2, true) }, []string{"buffer 0", "bytes"}},
		{"unsealed file", func(a *handoff.Attach, fds []int) { fds[0] = memfd(t, a.Buffers[0].Len, false) }, []string{"buffer 0", "seal"}},
		{"not a file of memory", func(a *handoff.Attach, fds []int) { fds[0] = pipe(t) }, []string{"buffer 0"}},
		{"block size 0", func(a *handoff.Attach, _ []int) { a.Capacity.BlockTokens = 0 }, []string{"block_tokens"}},
	}
}

// TestBadAttach: what an engine states wrongly is refused by its field, and the sidecar
// serves the next engine; one that is attached is not disturbed.
func TestBadAttach(t *testing.T) {
	w := up(t, "tp=1,role=prefill+tp=1,role=decode", "hybrid")
	file, dir := w.sidecarFile("spare")
	w.sidecar(file)
	spare := &dev.Running{Group: dev.Group{Name: "spare", Role: discovery.Decode, TP: 1}, Instance: 77}
	r, err := engine.New(engineConfig(spare, 0, w.model))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	state := r.Attach().Model.Layout.States[r.Attach().Shards[0].State].Name
	dial := func(dir string, change func(a *handoff.Attach, fds []int)) error {
		c := client.Config{Dir: dir, Attach: r.Attach(), Files: slices.Clone(r.Files())}
		c.Attach.Shards = slices.Clone(c.Attach.Shards)
		change(&c.Attach, c.Files)
		s, err := client.Dial(bounded(t), c)
		if err == nil {
			s.Close()
		}
		return err
	}
	for _, c := range badAttaches(t, state) {
		t.Run(c.what, func(t *testing.T) {
			err := dial(dir, c.change)
			if !errors.Is(err, handoff.ErrAttach) {
				t.Fatalf("got %v, want %v", err, handoff.ErrAttach)
			}
			for _, word := range c.say {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%v: does not say %q", err, word)
				}
			}
		})
	}
	nothing := func(*handoff.Attach, []int) {}
	if err := dial(dir, nothing); err != nil {
		t.Errorf("a good engine after the bad ones: %v", err)
	}
	err = dial(w.decode.Ranks[0].Sidecar.Engine, func(a *handoff.Attach, _ []int) { a.Group = w.decode.Name })
	if !errors.Is(err, handoff.ErrAttached) || !strings.Contains(err.Error(), "stop that engine first") {
		t.Errorf("a second engine of a rank: %v", err)
	}
	w.handoff("unharmed", prompt(1, 40))
}

func pipe(t *testing.T) int {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0]
}

// TestBadImports: an import that is wrong fails by its reason, the source stays safe,
// and a right one still works.
func TestBadImports(t *testing.T) {
	w := up(t, "tp=1,role=prefill+tp=2,role=decode", "hybrid")
	ctx, p := bounded(t), prompt(1, 3*block)
	man, err := w.export(ctx, w.prefill, "a", p)
	if err != nil {
		t.Fatal(err)
	}
	file, dir := w.sidecarFile("odd")
	_, odd := w.sidecar(file)
	g := &dev.Running{Group: dev.Group{Name: "odd", Role: discovery.Decode, TP: 1}, Instance: 78}
	eng, err := attachScripted(ctx, g, 0, model.Attention(1), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer eng.close()
	rank1 := w.decode.Ranks[1].Sidecar.Addr
	for _, c := range []struct {
		what   string
		addr   string
		as     string
		change func(*handoff.Import)
		is     error
		say    string
	}{
		{"wrong key", "", "", func(i *handoff.Import) { i.Manifest.Key[3]++ }, handoff.ErrGone, ""},
		{"wrong model digest", "", "", func(i *handoff.Import) { i.Manifest.Model[0]++ }, handoff.ErrModel, "runs"},
		{"decode of another model", odd.Addr, "", func(*handoff.Import) {}, handoff.ErrModel, "baton-tiny-attention-1"},
		{"one token less", "", "", func(i *handoff.Import) { i.Tokens = i.Tokens[1:] }, handoff.ErrPosition, "48 tokens, the import brings 47"},
		{"no tokens", "", "", func(i *handoff.Import) { i.Tokens = nil }, handoff.ErrPosition, "tokens"},
		{"unknown hand-off", "", "", func(i *handoff.Import) { i.Manifest.ID.N += 1000 }, handoff.ErrGone, ""},
		{"leader of an earlier life", "", "", func(i *handoff.Import) { i.Manifest.ID.Leader++ }, handoff.ErrGone, "restarted"},
		{"group that is nowhere", "", "", func(i *handoff.Import) { i.Manifest.ID.Group, i.Deadline = "nowhere", 300*time.Millisecond }, handoff.ErrDeadline, "nowhere"},
		{"not the leader", rank1, "", func(*handoff.Import) {}, handoff.ErrNotReady, "ask rank 0"},
		{"a label without end", "", "", func(i *handoff.Import) { i.Label = strings.Repeat("x", 1<<16) }, handoff.ErrBound, "label"},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.addr == "" {
				c.addr = w.decode.Ranks[0].Sidecar.Addr
			}
			im := handoff.Import{Label: "bad", Manifest: man, Tokens: p, Deadline: patience}
			c.change(&im)
			_, err := w.dial(c.addr, "control").Import(ctx, im)
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("got %v, want %v and %q", err, c.is, c.say)
			}
		})
	}
	_, err = w.dial(w.decode.Ranks[0].Sidecar.Addr, w.prefill.Name+"-0").Status(ctx)
	if !errors.Is(err, handoff.ErrDenied) || !strings.Contains(err.Error(), "baton certs") {
		t.Errorf("a control call with a sidecar's certificate: %v", err)
	}
	m, err := w.bring(ctx, w.decode, man, "good", p)
	if err != nil {
		t.Fatalf("the right import: %v", err)
	}
	w.equal("good", p, m.tokens)
	w.nothingHeld()
}
