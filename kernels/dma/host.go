//go:build cgo

package dma

import (
	"cmp"
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

// pinFor pins the host memory that ns touch, as far as that can be. Caller holds mu.
func (d *Device) pinFor(ns []lower.Nest, src, dst transfer.Buffers) {
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
		if i >= 0 && last.Addr-d.hosts[i].at < uint64(d.hosts[i].bytes) {
			d.pin(d.hosts[i])
		}
	}
	for i := range ns {
		side(dst, ns[i].Dst)
		if ns[i].From != 0 {
			side(src, ns[i].Src)
		}
	}
}

// pin tries it once, and again after PinBytes had no room. Caller holds mu, and has a context.
func (d *Device) pin(h *host) {
	room := h.bytes <= d.cfg.PinBytes-d.pinned
	if h.state == pinned || h.state == refused || h.state == crowded && !room {
		return
	}
	h.state = refused
	if !room {
		h.state = crowded
		d.cfg.Warn(fmt.Errorf("%w: %d bytes of host memory stay unpinned, %d of %d are in use: copies between them and the GPU are slow", transfer.ErrFull, h.bytes, d.pinned, d.cfg.PinBytes))
		return
	}
	if err := d.ctx.Pin(h.at, h.bytes, h.readOnly); err != nil {
		d.cfg.Warn(fmt.Errorf("%w: %d bytes of host memory stay unpinned: copies between them and the GPU are slow", err, h.bytes))
		return
	}
	h.state = pinned
	d.pinned += h.bytes
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
