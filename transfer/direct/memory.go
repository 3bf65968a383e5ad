package direct

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer"
)

// MaxRegions bounds RegionID and the buffers of one rank.
const MaxRegions = 4096

// mapping is one buffer in this process. Its pages live as long as the mapping,
// whatever becomes of the process that made them.
type mapping struct {
	transfer.Mapped
	release func() error // nil for local memory
}

func (m *mapping) unmap() error {
	if m.release == nil {
		return nil
	}
	f := m.release
	m.release, m.Mapped = nil, transfer.Mapped{}
	return f()
}

// attach maps m and closes its descriptors, also when it fails: the mapping keeps the
// memory. write asks for more than reading.
func (b *Backend) attach(id transfer.RegionID, m transfer.Memory, write bool) (mapping, error) {
	for _, fd := range m.FDs() {
		defer unix.Close(fd)
	}
	got, err := b.attachOpen(id, m, write)
	if err != nil {
		return mapping{}, fmt.Errorf("%w: region %d: %w", transfer.ErrMemory, id, err)
	}
	return got, nil
}

func (b *Backend) attachOpen(id transfer.RegionID, m transfer.Memory, write bool) (mapping, error) {
	if id >= MaxRegions {
		return mapping{}, fmt.Errorf("number too large: a rank has buffers 0 to %d", MaxRegions-1)
	}
	if m.Len <= 0 || m.Off < 0 || m.Off > maxFile-m.Len {
		return mapping{}, fmt.Errorf("offset %d and length %d: want an offset from 0 and at least one byte", m.Off, m.Len)
	}
	switch m.Kind {
	case transfer.Local:
		if m.Addr == 0 || m.Addr > 1<<63 {
			return mapping{}, fmt.Errorf("address %#x: want one of this process", m.Addr)
		}
		return mapping{Mapped: transfer.Mapped{Addr: m.Addr + uint64(m.Off), Len: m.Len}}, nil
	case transfer.Memfd:
		return b.mapFile(m, write)
	case transfer.CUDA, transfer.CUDAFD:
		if b.device == nil {
			return mapping{}, fmt.Errorf("GPU memory: this process has no CUDA driver")
		}
		at, release, err := b.device.Map(m, write)
		return mapping{Mapped: at, release: release}, err
	}
	return mapping{}, fmt.Errorf("memory of kind %d: want a memfd, GPU memory or local memory", m.Kind)
}

// maxFile keeps sums of offset, length and a page far from overflow.
const maxFile = 1 << 56

func (b *Backend) mapFile(m transfer.Memory, write bool) (mapping, error) {
	var st unix.Stat_t
	if err := unix.Fstat(m.FD, &st); err != nil {
		return mapping{}, fmt.Errorf("descriptor %d: fstat: %w", m.FD, err)
	}
	seals, err := unix.FcntlInt(uintptr(m.FD), unix.F_GET_SEALS, 0)
	if err != nil {
		return mapping{}, fmt.Errorf("descriptor %d cannot be sealed (%w): attach a memfd made with MFD_ALLOW_SEALING", m.FD, err)
	}
	// Without the seal whoever holds the file could shorten it under a copy, which
	// ends this process with SIGBUS. The size is checked after the seal.
	if seals&unix.F_SEAL_SHRINK == 0 {
		return mapping{}, fmt.Errorf("the memfd may still shrink (seals %#x): add F_SEAL_SHRINK with fcntl(F_ADD_SEALS) first", seals)
	}
	if err := unix.Fstat(m.FD, &st); err != nil {
		return mapping{}, fmt.Errorf("descriptor %d: fstat: %w", m.FD, err)
	}
	if m.Off+m.Len > st.Size {
		return mapping{}, fmt.Errorf("the file has %d bytes and the buffer ends at %d: grow the memfd before it is attached, or correct offset and length", st.Size, m.Off+m.Len)
	}
	// A memfd of huge pages maps at multiples of its own page, which is its block size.
	page := max(int64(os.Getpagesize()), st.Blksize)
	from := m.Off / page * page
	span := (m.Off + m.Len - from + page - 1) / page * page
	f, err := b.file(m.FD, file{dev: st.Dev, ino: st.Ino, from: from, span: span, write: write})
	if err != nil {
		return mapping{}, err
	}
	addr := f.addr() + uint64(m.Off-f.from)
	return mapping{Mapped: transfer.Mapped{Addr: addr, Len: m.Len}, release: func() error { return b.letGo(f) }}, nil
}

// CloseAll closes the descriptors of regions that nobody took.
func CloseAll(regions map[transfer.RegionID]transfer.Memory) {
	for _, m := range regions {
		for _, fd := range m.FDs() {
			unix.Close(fd)
		}
	}
}
