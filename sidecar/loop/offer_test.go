package loop

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/peer/fd"
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
