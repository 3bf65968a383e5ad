package rows

import (
	"fmt"
	"sync"

	"github.com/batonkv/baton/transfer"
)

// Memcpy copies the first n bytes of src to dst with one memcpy of each of workers
// goroutines: what the strided copies are measured against.
func Memcpy(dst, src transfer.Mapped, n int64, workers int) error {
	if n < 0 || n > dst.Len || n > src.Len || workers < 1 {
		return fmt.Errorf("%w: %d bytes from %d to %d with %d workers", transfer.ErrBounds, n, src.Len, dst.Len, workers)
	}
	var wg sync.WaitGroup
	for w := range int64(workers) {
		lo, hi := n/int64(workers)*w, n/int64(workers)*(w+1)
		if w == int64(workers)-1 {
			hi = n
		}
		wg.Go(func() { flat(dst.Addr+uint64(lo), src.Addr+uint64(lo), hi-lo) })
	}
	wg.Wait()
	return nil
}
