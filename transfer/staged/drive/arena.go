package drive

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/pack"
)

// MinChunk is the smallest chunk: a page.
const MinChunk = 4096

// arena is the staging memory: chunks that are packed first, then those that are fetched
// into. The local mover and the wire movers map it, and this process, for the stamps.
type arena struct {
	fd    int
	b     []byte
	bytes int64 // of a chunk
}

func newArena(chunks, bytes int64) (*arena, error) {
	n := chunks * bytes
	if bytes < MinChunk || bytes > staged.MaxChunk || bytes%MinChunk != 0 {
		return nil, fmt.Errorf("%w: chunks of %d bytes, want whole pages up to %d", staged.ErrConfig, bytes, staged.MaxChunk)
	}
	fd, err := unix.MemfdCreate("staging-arena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("%w: staging arena: %w", transfer.ErrMemory, err)
	}
	err = unix.Ftruncate(fd, n)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	var b []byte
	if err == nil {
		b, err = unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: staging arena of %d bytes: %w", transfer.ErrMemory, n, errors.Join(err, unix.Close(fd)))
	}
	return &arena{fd: fd, b: b, bytes: bytes}, nil
}

// memory describes the arena with a descriptor of its own, the receiver's.
func (a *arena) memory() (transfer.Memory, error) {
	fd, err := unix.FcntlInt(uintptr(a.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return transfer.Memory{}, fmt.Errorf("%w: staging arena: %w", transfer.ErrMemory, err)
	}
	return transfer.Memory{Kind: transfer.Memfd, FD: fd, Len: int64(len(a.b))}, nil
}

func (a *arena) close() error { return errors.Join(unix.Munmap(a.b), unix.Close(a.fd)) }

func closeMemory(m transfer.Memory) { _ = unix.Close(m.FD) }

// chunk is the i-th of the whole arena.
func (a *arena) chunk(i int32) []byte {
	return a.b[int64(i)*a.bytes : int64(i+1)*a.bytes : int64(i+1)*a.bytes]
}

// in is the arena's number of a chunk that is fetched into.
func (s *Stage) in(chunk int32) int32 { return s.cfg.Chunks + chunk }

// packArena and unpackArena are the arena as the copies of either half see it: one of the
// local mover's regions, or the first buffer of the peer that is the arena.
func (s *Stage) packArena() pack.Arena {
	return pack.Arena{Buffer: uint32(s.cfg.Region), Chunks: 2 * s.cfg.Chunks, Chunk: s.cfg.Chunk, Head: staged.StampBytes}
}

func (s *Stage) unpackArena() pack.Arena {
	return pack.Arena{Chunks: 2 * s.cfg.Chunks, Chunk: s.cfg.Chunk, Head: staged.StampBytes}
}
