//go:build cgo

package e2e

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/kernels/cuda/cudatest"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer"
)

// onFakeGPUs has every process that the test starts find a driver without a GPU.
func onFakeGPUs(t *testing.T) (driver string) {
	driver = cudatest.Library(t)
	t.Setenv("LD_LIBRARY_PATH", filepath.Dir(driver))
	return driver
}

// TestLoadOnGPUs: made-up requests whose state lies on GPUs, or on one at one end, are what
// their tokens say, by the transport that the memory of both ends asks for.
func TestLoadOnGPUs(t *testing.T) {
	// The first copy after so many poisons a mover's context: those of all requests are more than
	// twice as many, and the killed mover's count for nothing.
	const poisoned = "FAKE_CUDA_FAIL=exec:1000:700"
	for _, c := range []struct{ name, flags, env, says string }{
		{"handles, movers killed", "--prefill-memory=gpu --decode-memory=gpu --kill-movers=3", "", "MiB moved by cudaipc, "},
		{"to chunks", "--prefill-memory=gpu --decode-memory=gpu-chunks", "", "MiB moved by cudaipc\n"},
		{"from chunks in parts", "--prefill-memory=gpu-chunks --decode-memory=gpu --export-parts", "", "MiB moved by cudaipc, "},
		{"contexts lost", "--prefill-memory=gpu --decode-memory=gpu --kill-movers=1", poisoned, "context is lost"},
		{"no access between GPUs", "--prefill-memory=gpu --decode-memory=gpu", "FAKE_CUDA_NO_PEER=1", "MiB moved by cudaipc, tcp\n"},
		{"to the host", "--prefill-memory=gpu", "", "MiB moved by tcp\n"},
		{"from the host", "--decode-memory=gpu-chunks", "", "MiB moved by tcp\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			onFakeGPUs(t)
			if name, value, set := strings.Cut(c.env, "="); set {
				t.Setenv(name, value)
			}
			args := append([]string{"load", "--requests=60", "--seed=5", "--inference-shards=tp=2,role=prefill+tp=1,role=decode"}, strings.Fields(c.flags)...)
			out, err := exec.CommandContext(bounded(t), binary, args...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), c.says) {
				t.Errorf("%v: %v; want %q\n%s", args, err, c.says, out)
			}
		})
	}
}

// TestDamageOnGPUs: the comparison reads what is on the GPU.
func TestDamageOnGPUs(t *testing.T) {
	onFakeGPUs(t)
	out, err := exec.CommandContext(bounded(t), binary, "load", "--requests=10", "--damage", "--prefill-memory=gpu", "--decode-memory=gpu").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "WRONG STATE") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestBadGPUAttach: GPU memory that is stated wrongly is refused by the reason, and the
// sidecar takes the next engine.
func TestBadGPUAttach(t *testing.T) {
	driver := onFakeGPUs(t)
	w := up(t, "tp=1,role=prefill+tp=1,role=decode", "attention")
	file, dir := w.sidecarFile("spare")
	w.sidecar(file)
	r, err := engine.New(engineConfig(&dev.Running{Group: dev.Group{Name: "spare", Role: discovery.Decode, TP: 1}, Instance: 77}, 0, w.model))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	buffers := gpuBuffers(t, driver, r.Attach().Buffers)
	for _, c := range []struct {
		what string
		edit func(*handoff.BufferDecl)
		is   error
		say  string
	}{
		{"good", func(*handoff.BufferDecl) {}, nil, ""},
		{"wrong handle", func(d *handoff.BufferDecl) { d.GPU.Handle[0]++ }, transfer.ErrMemory, "CUDA_ERROR_INVALID_HANDLE"},
		{"a GPU that is not visible", func(d *handoff.BufferDecl) { d.GPU.UUID[3]++ }, transfer.ErrMemory, "CUDA_VISIBLE_DEVICES"},
		{"behind the allocation", func(d *handoff.BufferDecl) { d.Off += 1 << 30 }, transfer.ErrMemory, "at offset"},
		{"good again", func(*handoff.BufferDecl) {}, nil, ""},
	} {
		a := r.Attach()
		a.Buffers = nil
		for i, d := range buffers {
			g := *d.GPU
			d.GPU = &g
			if i == 0 {
				c.edit(&d)
			}
			a.Buffers = append(a.Buffers, d)
		}
		s, err := client.Dial(bounded(t), client.Config{Dir: dir, Attach: a})
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, c.is) || c.is != nil && !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v; want %v that says %q", c.what, err, c.is, c.say)
		}
	}
}

// gpuBuffers are buffers as large as others, on a GPU until the test ends.
func gpuBuffers(t *testing.T, driver string, like []handoff.BufferDecl) (ds []handoff.BufferDecl) {
	t.Helper()
	must := func(err error) {
		if t.Helper(); err != nil {
			t.Fatal(err)
		}
	}
	d, err := cuda.Open(driver)
	must(err)
	c, err := d.Context(0)
	must(err)
	t.Cleanup(func() { must(c.Close()) })
	for _, b := range like {
		at, err := c.Alloc(b.Len)
		must(err)
		t.Cleanup(func() { must(c.Free(at)) })
		x, err := c.Export(at, b.Len)
		must(err)
		ds = append(ds, handoff.BufferDecl{ID: b.ID, Off: x.Off, Len: b.Len, GPU: &handoff.GPUMemory{UUID: c.Device().UUID, Handle: x.Handle}})
	}
	return ds
}
