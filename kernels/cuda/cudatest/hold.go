package cudatest

import "sync/atomic"

// Hold stops all progress until release is called.
func (f Fake) Hold() (release func()) {
	atomic.StoreInt64(&f.counts().hold, 1)
	return func() { atomic.StoreInt64(&f.counts().hold, 0) }
}

// HoldPins has calls that pin host memory wait until release is called; held is how many do.
func (f Fake) HoldPins() (held func() int64, release func()) {
	atomic.StoreInt64(&f.counts().holdPins, 1)
	return func() int64 { return atomic.LoadInt64(&f.counts().heldPins) }, func() { atomic.StoreInt64(&f.counts().holdPins, 0) }
}
