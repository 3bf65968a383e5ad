package drive_test

import (
	"sync"
	"testing"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/transfertest"
)

// home is where an engine's memory is, and what copies there.
type home struct {
	local func(t testing.TB) *mover.Mover
	alloc transfertest.Alloc
}

// onHost is memory of the host, copied in this process.
func onHost(t testing.TB) home {
	return home{func(t testing.TB) *mover.Mover {
		m, err := mover.InProcess(mover.Config{}, plain.Copier{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}, transfertest.Memfd}
}

var minted struct {
	sync.Mutex
	n uint64
}

func mint() uint64 {
	minted.Lock()
	defer minted.Unlock()
	minted.n++
	return minted.n
}
