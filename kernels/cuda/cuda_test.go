//go:build cgo

package cuda

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/batonkv/baton/kernels/cuda/cudatest"
)

// fake opens a driver of its own, whose leaks are counted when the test ends.
func fake(t *testing.T) (*Driver, cudatest.Fake) {
	t.Helper()
	path := cudatest.Library(t)
	f := cudatest.Loaded(t, path)
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if l := f.Leaks(); l != (cudatest.Counts{}) {
			t.Errorf("left behind: %+v", l)
		}
	})
	return d, f
}

func context(t *testing.T, d *Driver, ordinal int) *Context {
	t.Helper()
	c, err := d.Context(ordinal)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func alloc(t *testing.T, c *Context, b []byte) uint64 {
	t.Helper()
	at, err := c.Alloc(int64(len(b)))
	if err == nil {
		err = c.Put(at, b)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Free(at); err != nil {
			t.Error(err)
		}
	})
	return at
}

func lane(t *testing.T, c *Context, n int) *Lane {
	t.Helper()
	l, err := c.Lane(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func TestDevices(t *testing.T) {
	d, _ := fake(t)
	if d.Version() != 13000 || !d.Batches() || len(d.Devices()) != 2 {
		t.Fatalf("version %d, batches %t, %d devices", d.Version(), d.Batches(), len(d.Devices()))
	}
	g, err := d.Find(d.Devices()[1].UUID)
	if err != nil || g.Ordinal != 1 || g.SMs != 132 || g.Copies != 3 || g.Name != "Fake GPU 1" {
		t.Errorf("%+v, %v", g, err)
	}
	if _, err := d.Find([16]byte{9}); !errors.Is(err, ErrGPU) || !strings.Contains(err.Error(), "CUDA_VISIBLE_DEVICES") {
		t.Errorf("a GPU that is not there: %v", err)
	}
	if err := d.Reaches(0, 1); err != nil {
		t.Error(err)
	}
	t.Setenv("FAKE_CUDA_NO_PEER", "1")
	if err := d.Reaches(0, 1); !errors.Is(err, ErrPeer) {
		t.Errorf("no access: %v", err)
	}
	if _, err := d.Context(2); !errors.Is(err, ErrGPU) {
		t.Errorf("context of GPU 2: %v", err)
	}
}

// Whatever the driver lacks is said by name, and by what to do.
func TestOpenFails(t *testing.T) {
	path := cudatest.Library(t)
	for _, c := range []struct {
		name, env, value string
		is               error
		says             string
	}{
		{"old", "FAKE_CUDA_VERSION", "11080", ErrOld, "11.8"},
		{"symbol", "FAKE_CUDA_MISSING", "cuMemcpy3DAsync", ErrOld, "cuMemcpy3DAsync"},
		{"no device", "FAKE_CUDA_DEVICES", "0", ErrNone, "(101)"},
		{"init", "FAKE_CUDA_FAIL", "cuInit:0:2", ErrNone, "CUDA_ERROR_OUT_OF_MEMORY"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(c.env, c.value)
			if _, err := Open(path); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Open: %v; want %v with %q", err, c.is, c.says)
			}
		})
	}
	if _, err := Open("libbaton-has-none.so.1"); !errors.Is(err, ErrNone) {
		t.Errorf("no library: %v", err)
	}
	if _, err := Open("libm.so.6"); !errors.Is(err, ErrOld) {
		t.Errorf("a library that is no driver: %v", err)
	}
}

func TestBatchForms(t *testing.T) {
	for version, want := range map[string]bool{"12000": false, "12080": true, "13000": true} {
		t.Run(version, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_VERSION", version)
			d, f := fake(t)
			if d.Batches() != want {
				t.Fatalf("batches: %t", d.Batches())
			}
			if !want {
				return
			}
			c := context(t, d, 0)
			src, dst := alloc(t, c, pattern(4096)), alloc(t, c, make([]byte, 4096))
			l := lane(t, c, 1)
			p := Program{Batched: 4}
			for i := range uint64(4) {
				p.Ops = append(p.Ops, Op{Src: src + i*1000, Dst: dst + i*1000, Width: 1000, Height: 1, Depth: 1})
			}
			if err := errors.Join(l.Submit(&p), l.Wait(0)); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 4096)
			if err := c.Get(got, dst); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got[:4000], pattern(4096)[:4000]) || f.Counts().Batches != 1 {
				t.Errorf("bytes differ, or %d batches", f.Counts().Batches)
			}
		})
	}
}

// everyKind is a program with batched ops, strided ones and zeroes, and what it
// makes of 1 MiB of 0xC5.
func everyKind(src, dst uint64, in []byte) (p Program, want []byte) {
	want = bytes.Repeat([]byte{0xC5}, 1<<20)
	add := func(o Op) {
		s, e := o.Src, o.Dst
		o.Src, o.Dst = o.Src+src, o.Dst+dst
		p.Ops = append(p.Ops, o)
		for z := range o.Depth {
			for y := range o.Height {
				at, from := e+(z*o.DstRows+y)*o.DstPitch, s+(z*o.SrcRows+y)*o.SrcPitch
				if o.Kind == Zero {
					clear(want[at : at+o.Width])
				} else {
					copy(want[at:at+o.Width], in[from:])
				}
			}
		}
	}
	for i := range uint64(3) {
		add(Op{Src: i * 100, Dst: i * 64, Width: 64, Height: 1, Depth: 1})
	}
	p.Batched = 3
	for i := range uint64(10) {
		add(Op{Src: 4096 + i*512, Dst: 8192 + i*2048, Width: 32, Height: 4, Depth: 3, SrcPitch: 48, DstPitch: 40, SrcRows: 5, DstRows: 8, Stream: int32(i % 2)})
	}
	for i := range uint64(5) {
		add(Op{Src: 1<<16 + i*4096, Dst: 1<<17 + i*8192, Width: 100, Height: 7, Depth: 1, SrcPitch: 128, DstPitch: 256, SrcRows: 7, DstRows: 7, Stream: int32(i % 2)})
	}
	add(Op{Kind: Zero, Dst: 1 << 19, Width: 77, Height: 3, Depth: 2, DstPitch: 80, DstRows: 3, Stream: 1})
	add(Op{Kind: Zero, Dst: 1<<19 + 4096, Width: 5, Height: 1, Depth: 1})
	return p, want
}

func TestProgram(t *testing.T) {
	d, f := fake(t)
	c := context(t, d, 0)
	in := pattern(1 << 20)
	src, dst := alloc(t, c, in), alloc(t, c, bytes.Repeat([]byte{0xC5}, 1<<20))
	p, want := everyKind(src, dst, in)
	l := lane(t, c, 2)
	if err := errors.Join(l.Submit(&p), l.Wait(0)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if err := c.Get(got, dst); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("bytes differ")
	}
	if n := f.Counts(); n.Batches != 1 || n.Batched != 3 || n.Strided != 15 || n.Sets != 3 {
		t.Errorf("calls: %+v", n)
	}
}

// Submit returns while copies are under way; Wait does not.
func TestAsynchronous(t *testing.T) {
	d, f := fake(t)
	c := context(t, d, 0)
	src, dst := alloc(t, c, pattern(64)), alloc(t, c, make([]byte, 64))
	l := lane(t, c, 4)
	release := f.Hold()
	if err := l.Submit(&Program{Ops: []Op{{Src: src, Dst: dst, Width: 64, Height: 1, Depth: 1, Stream: 3}}}); err != nil {
		t.Fatal(err)
	}
	if done, err := l.Poll(); done || err != nil {
		t.Fatalf("held: %t, %v", done, err)
	}
	release()
	if err := l.Wait(0); err != nil {
		t.Fatal(err)
	}
	if done, err := l.Poll(); !done || err != nil {
		t.Errorf("after Wait: %t, %v", done, err)
	}
}
