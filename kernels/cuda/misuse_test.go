//go:build cgo

package cuda

import (
	"errors"
	"strings"
	"testing"
)

// What the driver refuses at submission is said with its name, and what had begun ends.
func TestSubmitRefused(t *testing.T) {
	d, f := fake(t)
	c := context(t, d, 0)
	src, dst := alloc(t, c, pattern(4096)), alloc(t, c, make([]byte, 4096))
	good := Op{Src: src, Dst: dst, Width: 8, Height: 4, Depth: 2, SrcPitch: 16, DstPitch: 16, SrcRows: 4, DstRows: 4}
	for name, edit := range map[string]func(*Op){
		"pitch under width":     func(o *Op) { o.SrcPitch = 7 },
		"pitch over 2^31-1":     func(o *Op) { o.DstPitch = 1 << 31 },
		"planes within planes":  func(o *Op) { o.DstRows = 3 },
		"source outside":        func(o *Op) { o.Src = src + 4090 },
		"destination outside":   func(o *Op) { o.Dst = dst - 1 },
		"no memory":             func(o *Op) { o.Dst = 64 },
		"nothing to be written": func(o *Op) { o.Width = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			bad := good
			edit(&bad)
			l := lane(t, c, 2)
			before := f.Counts().Bytes
			var e *Error
			err := l.Submit(&Program{Ops: []Op{good, bad}})
			if !errors.As(err, &e) || e.Name != "CUDA_ERROR_INVALID_VALUE" || errors.Is(err, ErrLost) {
				t.Errorf("Submit: %v", err)
			}
			if err := l.Wait(0); err != nil {
				t.Error(err)
			}
			if n := f.Counts().Bytes - before; n != good.Bytes() {
				t.Errorf("%d bytes were written after the failure, want the first op's %d", n, good.Bytes())
			}
		})
	}
}

func TestProgramChecks(t *testing.T) {
	d, _ := fake(t)
	l := lane(t, context(t, d, 0), 2)
	op := Op{Width: 1, Height: 1, Depth: 1}
	for name, p := range map[string]Program{
		"stream":  {Ops: []Op{{Stream: 2}}},
		"batched": {Ops: []Op{op}, Batched: 2},
	} {
		if err := l.Submit(&p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := l.c.Lane(MaxStreams + 1); err == nil {
		t.Error("a lane of 9 streams")
	}
}

// Memory that is freed under a copy loses the context: nothing else tells the copy's end.
func TestFreedUnderCopy(t *testing.T) {
	d, f := fake(t)
	c, err := d.Context(0)
	if err != nil {
		t.Fatal(err)
	}
	src, _ := c.Alloc(64)
	dst, _ := c.Alloc(64)
	l, err := c.Lane(1)
	if err != nil {
		t.Fatal(err)
	}
	release := f.Hold()
	if err := l.Submit(&Program{Ops: []Op{{Src: src, Dst: dst, Width: 64, Height: 1, Depth: 1}}}); err != nil {
		t.Fatal(err)
	}
	_ = c.Free(src)
	release()
	if err := l.Wait(0); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "CUDA_ERROR_ILLEGAL_ADDRESS") {
		t.Errorf("Wait: %v", err)
	}
	if _, err := c.Alloc(64); !errors.Is(err, ErrLost) {
		t.Errorf("the context still works: %v", err)
	}
	if n := f.Counts().Violations; n != 2 {
		t.Errorf("the fake saw %d violations, want the free and the copy", n)
	}
	// This driver's leaks are what the test is about.
	f.Forget()
}

// Every call that fails says so, and leaves nothing behind.
func TestCallsFail(t *testing.T) {
	for _, call := range []string{"cuMemAlloc", "cuStreamCreateWithPriority", "cuEventCreate", "cuMemcpyAsync", "cuMemcpy3DAsync",
		"cuMemcpyBatchAsync",
		"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAddressReserve", "cuMemExportToShareableHandle", "cuIpcGetMemHandle"} {
		for _, after := range []string{"0", "1"} {
			t.Run(call+" "+after, func(t *testing.T) {
				t.Setenv("FAKE_CUDA_FAIL", call+":"+after+":2")
				d, _ := fake(t)
				c := context(t, d, 0)
				if err := everything(t, c); !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), "CUDA_ERROR_OUT_OF_MEMORY (2)") {
					t.Errorf("error: %v", err)
				}
			})
		}
	}
}

// everything does each thing twice, and undoes what worked.
func everything(t *testing.T, c *Context) (err error) {
	note := func(e error) bool {
		err = errors.Join(err, e)
		return e == nil
	}
	for range 2 {
		at, e := c.Alloc(1 << 16)
		if !note(e) {
			continue
		}
		if x, e := c.Export(at, 1<<16); note(e) && len(x.FDs) > 0 {
			t.Error("descriptors of plain memory")
		}
		if l, e := c.Lane(2); note(e) {
			op := Op{Src: at, Dst: at + 4096, Width: 64, Height: 1, Depth: 1}
			two := op
			two.Height, two.SrcPitch, two.DstPitch, two.SrcRows, two.DstRows = 2, 64, 64, 2, 2
			note(l.Submit(&Program{Ops: []Op{op, two, two, op, two}, Batched: 1}))
			note(l.Wait(0))
			note(l.Close())
		}
		if g, e := c.Grain(); note(e) {
			if k, e := c.Make(g, 2*g); note(e) {
				if x, e := c.Export(k.At+5, g); note(e) {
					closeAll(x.FDs)
				}
				note(k.Close())
			}
		}
		note(c.Free(at))
	}
	return err
}

// A copy whose end cannot be followed is lost, whatever the error.
func TestRecordFails(t *testing.T) {
	t.Setenv("FAKE_CUDA_FAIL", "cuEventRecord:0:1")
	d, f := fake(t)
	c := context(t, d, 0)
	at := alloc(t, c, pattern(4096))
	l := lane(t, c, 1)
	if err := l.Submit(&Program{Ops: []Op{{Src: at, Dst: at + 2048, Width: 64, Height: 1, Depth: 1}}}); err == nil {
		t.Error("Submit: no error")
	}
	if err := l.Wait(0); !errors.Is(err, ErrLost) {
		t.Errorf("Wait: %v, want ErrLost", err)
	}
	f.Forget()
}
