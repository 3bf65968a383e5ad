package loop

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/peer/fd"
	"github.com/batonkv/baton/sidecar/sockfd"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/transfertest"
)

// A peer gets a descriptor that reads alone, and still shows the seals that it checks.
func TestOfferReadsAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fd.sock")
	fds, err := fd.Listen(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer fds.Close()
	mem, err := unix.MemfdCreate("engine", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mem)
	if _, err := unix.FcntlInt(uintptr(mem), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	s := &Sidecar{fds: fds}
	if err := s.offer(7, handoff.BufferDecl{}, []int{mem}, handoff.Member{Group: "d"}); err != nil {
		t.Fatal(err)
	}
	fetched, err := fd.Fetch(t.Context(), path, 7, 1)
	if err != nil {
		t.Fatal(err)
	}
	got := fetched[0]
	defer unix.Close(got)
	if mode, err := unix.FcntlInt(uintptr(got), unix.F_GETFL, 0); err != nil || mode&unix.O_ACCMODE != unix.O_RDONLY {
		t.Errorf("mode %o, %v: want read only", mode, err)
	}
	if seals, err := unix.FcntlInt(uintptr(got), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		t.Errorf("seals %x, %v", seals, err)
	}
}

// What an engine states of GPU memory reaches its own mover and a peer's as it was stated.
func TestGPUBuffers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fd.sock")
	fds, err := fd.Listen(path, nil)
	check(t, err)
	defer fds.Close()
	uuid := [16]byte{7}
	decls := []handoff.BufferDecl{{ID: 0, Off: 1, Len: 2}, {ID: 1, Off: 3, Len: 4, GPU: &handoff.GPUMemory{UUID: uuid, Handle: [64]byte{9}}},
		{ID: 2, Off: 5, Len: 6, GPU: &handoff.GPUMemory{UUID: uuid, Chunks: []int64{10, 20}}}}
	want := []transfer.Memory{{Kind: transfer.Memfd, Off: 1, Len: 2}, {Kind: transfer.CUDA, Off: 3, Len: 4}, {Kind: transfer.CUDAFD, Off: 5, Len: 6}}
	b := &buffers{decls: decls, fds: map[uint32][]int{0: {transfertest.File(t, 1, 0)}, 2: {transfertest.File(t, 11, 0), transfertest.File(t, 12, 0)}}}
	s, cards := &Sidecar{fds: fds}, handoff.Buffers{Socket: path}
	for i, d := range decls {
		own, err := b.memory(d)
		check(t, err)
		sameMemory(t, own, want[i], d.GPU)
		c := handoff.BufferCard{Buffer: d.ID, Off: d.Off, Len: d.Len, GPU: d.GPU}
		if d.Descriptors() > 0 {
			c.Key = uint64(100 + i)
			check(t, s.offer(c.Key, d, b.fds[d.ID], handoff.Member{Group: "d"}))
		}
		cards.Cards = append(cards.Cards, c)
	}
	got, err := fetch(t.Context(), cards)
	check(t, err)
	for i, d := range decls {
		sameMemory(t, got[transfer.RegionID(d.ID)], want[i], d.GPU)
	}
	b.fds[2] = b.fds[2][:1]
	if _, err := b.memory(decls[2]); !errors.Is(err, transfer.ErrMemory) || !strings.Contains(err.Error(), "1 of 2 descriptors") {
		t.Errorf("a descriptor that did not come: %v", err)
	}
	if at := placeOf(decls, func(d handoff.BufferDecl) *handoff.GPUMemory { return d.GPU }); at != choice.OnHost|choice.OnGPU {
		t.Errorf("they lie at %v", at)
	}
}

// sameMemory compares and closes m; chunks of a GPU are of files whose sizes are 11 and 12.
func sameMemory(t *testing.T, m, want transfer.Memory, g *handoff.GPUMemory) {
	t.Helper()
	defer sockfd.CloseAll(m.FDs())
	if m.Kind != want.Kind || m.Off != want.Off || m.Len != want.Len || (m.GPU != nil) != (g != nil) {
		t.Fatalf("%+v, want %+v", m, want)
	}
	if g == nil {
		return
	}
	if m.GPU.UUID != g.UUID || m.GPU.Handle != g.Handle || len(m.GPU.Chunks) != len(g.Chunks) {
		t.Fatalf("%+v, want %+v", m.GPU, g)
	}
	for i, c := range m.GPU.Chunks {
		var st unix.Stat_t
		if err := unix.Fstat(c.FD, &st); err != nil || c.Len != g.Chunks[i] || st.Size != int64(11+i) {
			t.Errorf("chunk %d: %+v is a file of %d bytes, %v", i, c, st.Size, err)
		}
	}
}
