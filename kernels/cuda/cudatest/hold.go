package cudatest

import "sync/atomic"

// Hold stops all progress until release is called.
func (f Fake) Hold() (release func()) {
	atomic.StoreInt64(&f.counts().hold, 1)
	return func() { atomic.StoreInt64(&f.counts().hold, 0) }
}
