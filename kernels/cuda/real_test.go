//go:build cgo

package cuda

import (
	"bytes"
	"errors"
	"testing"

	"github.com/batonkv/baton/internal/need"
)

// real is the driver of a machine with a GPU.
func real(t *testing.T) *Driver {
	t.Helper()
	d, err := Open()
	if err == nil && len(d.Devices()) == 0 {
		err = errors.New("no device")
	}
	if err != nil {
		need.Skip(t, "gpu", "a GPU: %v", err)
	}
	return d
}

// The driver says of pointers what Export builds on, and refuses what the fake refuses.
func TestRealPointers(t *testing.T) {
	d := real(t)
	t.Logf("driver %s, batches %t", Version(d.Version()), d.Batches())
	for _, g := range d.Devices() {
		t.Logf("%+v", g)
	}
	c := context(t, d, 0)
	at := alloc(t, c, pattern(1<<20))
	p, err := c.Point(at + 4352)
	if err != nil || p.Base != at || p.Size != 1<<20 || !p.Legacy || p.Pool {
		t.Errorf("plain memory: %+v, %v", p, err)
	}
	if x, err := c.Export(at+4352, 1000); err != nil || x.Off != 4352 || len(x.FDs) != 0 {
		t.Errorf("export of plain memory: %+v, %v", x, err)
	}
	g, err := c.Grain()
	if err != nil {
		t.Fatal(err)
	}
	k, err := c.Make(g, 2*g, g)
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{0, 5, g, 3 * g} {
		p, err := c.Point(k.At + uint64(off))
		t.Logf("physical memory of %d, %d, %d at +%d: base +%d, %+v, %v", g, 2*g, g, off, int64(p.Base)-int64(k.At), p, err)
	}
	x, err := c.Export(k.At+5, 2*g)
	if err != nil || len(x.FDs) != 2 || x.Off != 5 || x.Sizes[1] != 2*g {
		t.Errorf("export of physical memory: %+v, %v", x, err)
	}
	closeAll(x.FDs)
	if err := k.Close(); err != nil {
		t.Error(err)
	}
}

// One program with every kind of op has the bytes that it should on a GPU too.
func TestRealProgram(t *testing.T) {
	d := real(t)
	c := context(t, d, 0)
	in := pattern(1 << 20)
	src, dst := alloc(t, c, in), alloc(t, c, bytes.Repeat([]byte{0xC5}, 1<<20))
	p, want := everyKind(src, dst, in)
	l := lane(t, c, 2)
	for range 3 {
		if err := errors.Join(l.Submit(&p), l.Wait(0)); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, len(want))
	if err := c.Get(got, dst); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("bytes differ")
	}
}
