//go:build cgo

package dma

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

// host is host memory that copies may touch: whole pages. The driver takes bytes of pinned
// memory where they lie; of other memory it copies them first, on a processor.
type host struct {
	at       uint64
	bytes    int64
	readOnly bool
	state    pin
	pinning  chan struct{} // closed when the driver, which is at it, has answered; nil: it is not
}

type pin uint8

const (
	untried pin = iota
	pinned
	refused // by the driver: not tried again
	crowded // no room within PinBytes: tried again when there is
)

// Host says that n bytes at a page's start are host memory that copies may touch until
// release is called, which comes before they are unmapped. They are pinned by the first copy
// that touches them. After an error of release the memory must stay mapped.
func (d *Device) Host(at uint64, n int64, write bool) (release func() error) {
	h := &host{at: at, bytes: n, readOnly: !write}
	d.mu.Lock()
	defer d.mu.Unlock()
	i, _ := d.find(at)
	d.hosts = slices.Insert(d.hosts, i, h)
	return func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		err := d.unpin(h)
		if i := slices.Index(d.hosts, h); err == nil && i >= 0 {
			d.hosts = slices.Delete(d.hosts, i, i+1)
		}
		return err
	}
}

// find is where host memory that starts at an address is, or belongs. Caller holds mu.
func (d *Device) find(at uint64) (int, bool) {
	return slices.BinarySearchFunc(d.hosts, at, func(h *host, at uint64) int { return cmp.Compare(h.at, at) })
}

// unpinned adds to out the host memory that ns touch and whose pin is to be tried, or under
// way. Caller holds mu.
func (d *Device) unpinned(out []*host, ns []lower.Nest, src, dst transfer.Buffers) []*host {
	var last transfer.Mapped
	side := func(bs transfer.Buffers, id uint32) {
		if uint64(id) >= uint64(len(bs)) || bs[id].GPU || bs[id] == last {
			return
		}
		last = bs[id]
		i, exact := d.find(last.Addr)
		if !exact {
			i--
		}
		if i < 0 || last.Addr-d.hosts[i].at >= uint64(d.hosts[i].bytes) {
			return
		}
		if h := d.hosts[i]; (h.pinning != nil || d.tries(h)) && !slices.Contains(out, h) {
			out = append(out, h)
		}
	}
	for i := range ns {
		side(dst, ns[i].Dst)
		if ns[i].From != 0 {
			side(src, ns[i].Src)
		}
	}
	return out
}

// tries reports whether a pin of h is to be tried: once, and again after PinBytes had no
// room. Caller holds mu.
func (d *Device) tries(h *host) bool {
	return h.state == untried || h.state == crowded && d.room(h)
}

func (d *Device) room(h *host) bool { return h.bytes <= d.cfg.PinBytes-d.pinned }

// pin tries it as far as that is to be tried, or waits for whoever does until ctx ends: copies
// that begin meanwhile would go by a processor. It holds no lock while the driver is at it,
// which takes as long as touching every page: copies of other memory go on. The caller's
// copy keeps the GPU.
func (d *Device) pin(ctx context.Context, h *host) error {
	d.mu.Lock()
	if wait := h.pinning; wait != nil {
		d.mu.Unlock()
		select {
		case <-wait:
			return nil
		case <-ctx.Done():
			return canceled(ctx, 0)
		}
	}
	if !d.tries(h) {
		d.mu.Unlock()
		return nil
	}
	if !d.room(h) {
		h.state = crowded
		used := d.pinned
		d.mu.Unlock()
		d.cfg.Warn(fmt.Errorf("%w: %d bytes of host memory stay unpinned, %d of %d are in use: copies between them and the GPU are slow", transfer.ErrFull, h.bytes, used, d.cfg.PinBytes))
		return nil
	}
	done, gpu := make(chan struct{}), d.ctx
	h.pinning = done
	d.pinned += h.bytes
	d.mu.Unlock()
	err := gpu.Pin(h.at, h.bytes, h.readOnly)
	d.mu.Lock()
	h.state = pinned
	if err != nil {
		h.state = refused
		d.pinned -= h.bytes
	}
	h.pinning = nil
	close(done)
	d.mu.Unlock()
	if err != nil {
		d.cfg.Warn(fmt.Errorf("%w: %d bytes of host memory stay unpinned: copies between them and the GPU are slow", err, h.bytes))
	}
	return nil
}

// unpin undoes pin. Caller holds mu.
func (d *Device) unpin(h *host) error {
	if h.state != pinned {
		return nil
	}
	if err := d.ctx.Unpin(h.at); err != nil {
		return fmt.Errorf("%w: %d bytes of host memory: %w", transfer.ErrMemory, h.bytes, err)
	}
	h.state = untried
	d.pinned -= h.bytes
	return nil
}

// unpinAll undoes every pin. Caller holds mu.
func (d *Device) unpinAll() (err error) {
	for _, h := range d.hosts {
		if e := d.unpin(h); e != nil && err == nil {
			err = e
		}
	}
	return err
}
