package direct

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer"
)

// file is a part of a memfd that is mapped. What a rank has registered and opens as a peer's
// too, its staging arena or its own engine's memory, is mapped, and pinned for a GPU, once.
type file struct {
	dev, ino   uint64
	from, span int64 // whole pages
	write      bool
	pages      []byte
	refs       int
	release    func() error // of the Device, or nil
}

func (f *file) addr() uint64 { return uint64(uintptr(unsafe.Pointer(&f.pages[0]))) }

// holds reports whether f has all of o, and may be used as o may.
func (f *file) holds(o *file) bool {
	return f.dev == o.dev && f.ino == o.ino && f.from <= o.from && f.from+f.span >= o.from+o.span && (f.write || !o.write)
}

// file maps the part of fd that f says, unless it is mapped.
func (b *Backend) file(fd int, f file) (*file, error) {
	b.fmu.Lock()
	defer b.fmu.Unlock()
	if i := slices.IndexFunc(b.files, func(o *file) bool { return o.holds(&f) }); i >= 0 {
		b.files[i].refs++
		return b.files[i], nil
	}
	prot, how := unix.PROT_READ, "for reading"
	if f.write {
		prot |= unix.PROT_WRITE
		how = "for writing (a read-only descriptor or F_SEAL_WRITE forbids it)"
	}
	var err error
	if f.pages, err = unix.Mmap(fd, f.from, int(f.span), prot, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map %d bytes at %d %s: %w", f.span, f.from, how, err)
	}
	if b.device != nil {
		f.release = b.device.Host(f.addr(), f.span, f.write)
	}
	f.refs = 1
	b.files = append(b.files, &f)
	return &f, nil
}

// letGo unmaps f when nobody else uses it.
func (b *Backend) letGo(f *file) error {
	b.fmu.Lock()
	defer b.fmu.Unlock()
	if f.refs--; f.refs > 0 {
		return nil
	}
	if f.release != nil {
		if err := f.release(); err != nil { // a GPU may still know the pages at this address
			return err
		}
	}
	b.files = slices.DeleteFunc(b.files, func(o *file) bool { return o == f })
	if err := unix.Munmap(f.pages); err != nil {
		return fmt.Errorf("%w: munmap: %w", transfer.ErrMemory, err)
	}
	return nil
}
