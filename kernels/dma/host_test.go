//go:build cgo

package dma

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/batonkv/baton/kernels/cuda/cudatest"
	"github.com/batonkv/baton/kernels/cuda/owner"
	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
)

// mixed is a device with memory of a GPU, of another process, and memory of the host.
type mixed struct {
	d       *Device
	f       cudatest.Fake
	gpu     transfer.Mapped
	host    []byte
	at      transfer.Mapped // host
	release func() error
	said    []string // warnings
	lost    bool     // the context
}

func newMixed(t *testing.T, n int64, cfg Config) *mixed {
	lib := cudatest.Library(t)
	m := &mixed{f: cudatest.Loaded(t, lib)}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envOwner+"=1", "FAKE_CUDA_FAIL=", "LD_LIBRARY_PATH="+filepath.Dir(lib))
	o, err := owner.Start(cmd)
	must(t, err)
	cfg.Warn = func(err error) { m.said = append(m.said, err.Error()) }
	cfg.Lanes = 1
	m.d, err = NewDevice(cfg, lib)
	must(t, err)
	mem, _, err := o.Alloc(1, transfer.CUDA, n)
	must(t, err)
	at, unmap, err := m.d.Map(mem, true)
	must(t, err)
	m.gpu = at
	m.host, err = unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	must(t, err)
	m.at = transfer.Mapped{Addr: uint64(uintptr(unsafe.Pointer(&m.host[0]))), Len: n}
	m.release = m.d.Host(m.at.Addr, n, true)
	t.Cleanup(func() {
		err := errors.Join(m.release(), unmap(), m.d.Close(), o.Close())
		if m.lost { // only the end of the process lets go
			return
		}
		must(t, errors.Join(err, unix.Munmap(m.host)))
		if l := m.f.Leaks(); l != (cudatest.Counts{}) {
			t.Errorf("left behind: %+v", l)
		}
	})
	return m
}

func (m *mixed) bytes() []byte { return plain.Bytes(m.gpu.Addr, m.gpu.Len) } // the fake's memory is the host's

// Nests between host memory and a GPU have the bytes of the reference, both ways, whether the
// driver pins the memory or not.
func TestHostCopies(t *testing.T) {
	const size = 1 << 14
	for name, c := range map[string]struct {
		cfg  Config
		fail string
		says string // a warning; "": pinned
	}{
		"pinned":        {},
		"refused":       {fail: "cuMemHostRegister:0:801", says: "801"},
		"no memory":     {fail: "cuMemHostRegister:0:2", says: "OUT_OF_MEMORY"},
		"beyond bounds": {cfg: Config{PinBytes: size - 1}, says: "in use"},
		"never":         {cfg: Config{PinBytes: -1}, says: "in use"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_FAIL", c.fail)
			m := newMixed(t, size, c.cfg)
			rapid.Check(t, func(rt *rapid.T) {
				toHost := rapid.Bool().Draw(rt, "to host")
				src, dst, from, to := m.at, m.gpu, m.host, m.bytes()
				if toHost {
					src, dst, from, to = dst, src, to, from
				}
				for i := range from {
					from[i], to[i] = byte(i*7+i>>8), 0xC5
				}
				n := lower.Nest{SrcOff: rapid.Int64Range(0, 4096).Draw(rt, "at"), Run: rapid.Int64Range(1, 40).Draw(rt, "run"), From: layout.U8, To: layout.U8, Rank: 3}
				d, s := n.Run, n.Run
				for i := 2; i >= 0; i-- {
					n.Dims[i] = lower.Dim{N: rapid.Int32Range(1, 5).Draw(rt, "n"), SrcStride: s + rapid.Int64Range(0, 2).Draw(rt, "gap"), DstStride: d + rapid.Int64Range(0, 2).Draw(rt, "gap")}
					s, d = n.Dims[i].SrcStride*int64(n.Dims[i].N), n.Dims[i].DstStride*int64(n.Dims[i].N)
				}
				ns := []lower.Nest{n}
				want := bytes.Clone(to)
				at := func(b []byte) transfer.Buffers {
					return transfer.Buffers{{Addr: uint64(uintptr(unsafe.Pointer(&b[0]))), Len: size}}
				}
				bytesOf, err := plain.Copier{}.Copy(t.Context(), ns, at(from), at(want))
				must(t, err)
				if got, err := m.d.Copy(t.Context(), ns, transfer.Buffers{src}, transfer.Buffers{dst}); err != nil || got != bytesOf {
					t.Fatalf("%d bytes, %v; want %d", got, err, bytesOf)
				}
				if !bytes.Equal(to, want) {
					t.Fatal("bytes differ")
				}
			})
			counts := m.f.Counts()
			if pinned := c.says == ""; pinned != (counts.Pins == 1) || pinned != (counts.Pinned > 0) || pinned == (counts.Pageable > 0) {
				t.Errorf("%+v", counts)
			}
			if c.says == "" && len(m.said) != 0 || c.says != "" && (len(m.said) != 1 || !strings.Contains(m.said[0], c.says)) {
				t.Errorf("warnings: %q, want one with %q", m.said, c.says)
			}
		})
	}
}

// Pins are bounded together, and one that goes makes room.
func TestPinsBounded(t *testing.T) {
	m := newMixed(t, 8192, Config{PinBytes: 12 << 10})
	second, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	must(t, err)
	at := transfer.Mapped{Addr: uint64(uintptr(unsafe.Pointer(&second[0]))) + 100, Len: 5000}
	ns := []lower.Nest{{Run: 4096, From: layout.U8, To: layout.U8}}
	for i, c := range []struct {
		from transfer.Mapped
		pins int64
	}{{m.at, 1}, {at, 1}} {
		if _, err := m.d.Copy(t.Context(), ns, transfer.Buffers{c.from}, transfer.Buffers{m.gpu}); err != nil {
			t.Fatal(err)
		}
		if got := m.f.Counts().Pins; got != c.pins {
			t.Errorf("copy %d: %d pins, want %d", i, got, c.pins)
		}
	}
	if len(m.said) != 0 { // the device was not told of the second: it is no mapping of a backend
		t.Errorf("warnings: %q", m.said)
	}
	for _, room := range []bool{false, true} {
		if room {
			must(t, m.release())
			m.release = m.d.Host(m.at.Addr, 8192, true)
		}
		release := m.d.Host(at.Addr-100, 8192, false)
		if _, err := m.d.Copy(t.Context(), ns, transfer.Buffers{at}, transfer.Buffers{m.gpu}); err != nil {
			t.Fatal(err)
		}
		if got := m.f.Counts(); got.Pins != 1 || (got.Pinned == 2) != room {
			t.Errorf("room %t: %+v", room, got)
		}
		must(t, release())
	}
	if len(m.said) != 1 || slices.Contains(m.said, "") {
		t.Errorf("warnings: %q", m.said)
	}
	must(t, unix.Munmap(second))
}

// Memory that found no room is pinned by the first copy that finds some; what the driver
// refused is not tried again.
func TestPinsWhenThereIsRoom(t *testing.T) {
	for fail, pins := range map[string]int64{"": 1, "cuMemHostRegister:0:801": 0} {
		m := newMixed(t, 8192, Config{PinBytes: 12 << 10})
		second, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
		must(t, err)
		at := transfer.Mapped{Addr: uint64(uintptr(unsafe.Pointer(&second[0]))), Len: 8192}
		release := m.d.Host(at.Addr, at.Len, false)
		pinsAfter := func(from transfer.Mapped, want int64) {
			t.Helper()
			ns := []lower.Nest{{Run: 4096, From: layout.U8, To: layout.U8}}
			if _, err := m.d.Copy(t.Context(), ns, transfer.Buffers{from}, transfer.Buffers{m.gpu}); err != nil {
				t.Fatal(err)
			}
			if got := m.f.Counts().Pins; got != want {
				t.Errorf("%d pins, want %d", got, want)
			}
		}
		pinsAfter(m.at, 1)
		pinsAfter(at, 1)
		pinsAfter(at, 1)
		if len(m.said) != 1 {
			t.Errorf("warnings: %q", m.said)
		}
		must(t, m.release())
		m.release = func() error { return nil }
		t.Setenv("FAKE_CUDA_FAIL", fail)
		pinsAfter(at, pins)
		t.Setenv("FAKE_CUDA_FAIL", "")
		pinsAfter(at, pins)
		must(t, errors.Join(release(), unix.Munmap(second)))
	}
}

// While the driver pins host memory, other memory is copied and mapped, and copies of that
// memory wait, as long as they want: one call pins it for all.
func TestSlowPin(t *testing.T) {
	m := newMixed(t, 8192, Config{})
	fill := func(b []byte) {
		for i := range b {
			b[i] = byte(i * 7)
		}
	}
	fill(m.host)
	ns := []lower.Nest{{Run: 4096, From: layout.U8, To: layout.U8}}
	fromHost := func(ctx context.Context) error {
		_, err := m.d.Copy(ctx, ns, transfer.Buffers{m.at}, transfer.Buffers{m.gpu})
		return err
	}
	held, release := m.f.HoldPins()
	defer release() // else what follows a failure waits for ever
	ends := make(chan error, 3)
	for range 3 {
		go func() { ends <- fromHost(t.Context()) }()
	}
	for held() == 0 {
		runtime.Gosched()
	}
	fill(m.bytes()[:4096])
	within := []lower.Nest{{DstOff: 4096, Run: 4096, From: layout.U8, To: layout.U8}}
	if n, err := m.d.Copy(t.Context(), within, transfer.Buffers{m.gpu}, transfer.Buffers{m.gpu}); n != 4096 || err != nil {
		t.Errorf("beside a slow pin: %d bytes, %v", n, err)
	}
	other := m.d.Host(m.at.Addr+1<<20, 4096, false)
	must(t, other())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := fromHost(ctx); !errors.Is(err, transfer.ErrCanceled) {
		t.Errorf("who does not wait for it: %v", err)
	}
	select {
	case err := <-ends:
		t.Errorf("a copy did not wait for the pin: %v", err)
	default:
	}
	release()
	for range 3 {
		must(t, <-ends)
	}
	if c := m.f.Counts(); c.Pins != 1 || c.Pinned != 3 || !bytes.Equal(m.bytes()[:4096], m.host[:4096]) || !bytes.Equal(m.bytes()[4096:], m.host[:4096]) {
		t.Errorf("%+v", c)
	}
}

// What the driver refuses of a copy to the host ends quietly, and a lost context is told.
func TestHostCopyFails(t *testing.T) {
	for _, pin := range []int64{0, -1} {
		for name, c := range map[string]struct {
			fail string
			is   error
		}{"refused": {"cuMemcpy3DAsync:0:1", transfer.ErrMemory}, "lost": {"exec:0:700", transfer.ErrLost}} {
			m := newMixed(t, 4096, Config{PinBytes: pin})
			t.Setenv("FAKE_CUDA_FAIL", c.fail)
			ns := []lower.Nest{{Run: 100, From: layout.U8, To: layout.U8}}
			n, err := m.d.Copy(t.Context(), ns, transfer.Buffers{m.gpu}, transfer.Buffers{m.at})
			if n != 0 || !errors.Is(err, c.is) {
				t.Errorf("%s, pins of %d bytes: %d bytes, %v", name, pin, n, err)
			}
			if name == "lost" {
				m.lost = true
			}
			t.Setenv("FAKE_CUDA_FAIL", "")
		}
	}
}
