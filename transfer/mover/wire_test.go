package mover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/sums"
)

func TestAnswerKeepsErrors(t *testing.T) {
	for _, s := range sentinels {
		op := &transfer.OpError{Backend: "direct", Op: "pull", Err: fmt.Errorf("%w: buffer 3", s)}
		a, err := decodeAnswer(answer{bytes: 7, err: op}.append(nil))
		if err != nil || a.bytes != 7 || !errors.Is(a.err, s) || a.err.Error() != s.Error()+": buffer 3" {
			t.Errorf("%v came back as %+v, %v", s, a, err)
		}
	}
	a, err := decodeAnswer(answer{err: io.ErrShortWrite}.append(nil))
	if err != nil || a.err == nil || a.err.Error() != io.ErrShortWrite.Error() {
		t.Errorf("an unknown error came back as %+v, %v", a, err)
	}
	a, err = decodeAnswer(answer{bytes: 1, err: errors.New(strings.Repeat("x", 2*maxText))}.append(nil))
	if err != nil || len(a.err.Error()) != maxText {
		t.Errorf("a long error: %v", err)
	}
	if a, err := decodeAnswer(answer{bytes: 1 << 40}.append(nil)); err != nil || a.bytes != 1<<40 || a.err != nil || a.sums != nil {
		t.Errorf("no error came back as %+v, %v", a, err)
	}
	if a, err := decodeAnswer(answer{sums: []uint64{3, 1 << 63}}.append(nil)); err != nil || a.err != nil || !slices.Equal(a.sums, []uint64{3, 1 << 63}) {
		t.Errorf("sums came back as %+v, %v", a, err)
	}
	if a, err := decodeAnswer(append(answer{sums: []uint64{3}}.append(nil), 1)); err == nil {
		t.Errorf("half a sum came back as %+v", a)
	}
}

func TestSumRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		span := func() layout.Span {
			return layout.Span{Lo: rapid.Int32().Draw(t, "lo"), Hi: rapid.Int32().Draw(t, "hi")}
		}
		j := sums.Job{Range: rapid.Int32().Draw(t, "range"), Slot: rapid.Int32().Draw(t, "slot"), Blocks: rapid.SliceOf(rapid.Int32()).Draw(t, "blocks")}
		for range rapid.IntRange(0, 5).Draw(t, "places") {
			p := sums.Place{State: rapid.Int32().Draw(t, "state"), Box: layout.Box{Layers: span(), Units: span()}, Tokens: span()}
			p.Rows, p.Elems, p.Size, p.Items, p.Depth = 1, 2, 3, 4, rapid.Int32().Draw(t, "depth")
			p.View = layout.View{Buffer: rapid.Uint32().Draw(t, "buffer"), Off: rapid.Int64().Draw(t, "off"), Layer: 5, Item: 6, Row: 7, Unit: 8, Elem: rapid.Int64().Draw(t, "elem")}
			j.Places = append(j.Places, p)
		}
		b := appendSum(nil, &j)
		r := reader{b: b}
		got := r.sum()
		if err := r.end(); err != nil || got.Range != j.Range || got.Slot != j.Slot || !slices.Equal(got.Blocks, j.Blocks) || !slices.Equal(got.Places, j.Places) {
			t.Fatalf("%+v came back as %+v, %v", j, got, err)
		}
		short := reader{b: b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")]}
		short.sum()
		if short.end() == nil {
			t.Fatal("a sum that was cut short was taken")
		}
	})
}

func TestJobRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := lower.Job{
			Pair: rapid.Uint32().Draw(t, "pair"), SrcSlot: rapid.Int32().Draw(t, "src"), DstSlot: rapid.Int32().Draw(t, "dst"),
			SrcBlocks: rapid.SliceOf(rapid.Int32()).Draw(t, "sb"), DstBlocks: rapid.SliceOf(rapid.Int32()).Draw(t, "db"),
			Tokens:   layout.Span{Lo: rapid.Int32().Draw(t, "lo"), Hi: rapid.Int32().Draw(t, "hi")},
			SrcFirst: rapid.Int32().Draw(t, "src first"), DstFirst: rapid.Int32().Draw(t, "dst first"),
		}
		copy(j.Handoff[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "handoff"))
		got := lower.Job{SrcBlocks: []int32{1, 2}, DstBlocks: []int32{3}} // reused
		r := reader{b: appendJob(nil, &j)}
		if r.job(&got); r.end() != nil {
			t.Fatal(r.err)
		}
		if len(j.SrcBlocks)+len(got.SrcBlocks) == 0 {
			j.SrcBlocks, got.SrcBlocks = nil, nil
		}
		if len(j.DstBlocks)+len(got.DstBlocks) == 0 {
			j.DstBlocks, got.DstBlocks = nil, nil
		}
		if !reflect.DeepEqual(j, got) {
			t.Fatalf("%+v came back as %+v", j, got)
		}
	})
}

// A frame may have as many descriptors as a rank's buffers, and no more.
func TestFrameOfManyDescriptors(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < maxFDs+2000 {
		need.Skip(t, "files", "%d files may be open: want %d", limit.Cur, maxFDs+2000)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, n := range []int{maxFDs, maxFDs + maxFrameFDs} {
		a, b := conns(t)
		var writing sync.WaitGroup
		writing.Go(func() {
			defer a.Close()
			for left := n; ; left -= maxFrameFDs {
				k, fds := kindFDs, make([]int, min(left, maxFrameFDs))
				for i := range fds {
					fds[i] = int(null.Fd())
				}
				if left <= maxFrameFDs {
					k = kindOpen
				}
				if err := writeAll(a, appendHead(nil, k, 7, 0, len(fds)), fds); err != nil || k == kindOpen {
					return
				}
			}
		})
		r := newFrameReader(b)
		f, err := r.next()
		if fits := n <= maxFDs; fits != (err == nil) || fits && len(f.fds) != n || !fits && !errors.Is(err, errWire) {
			t.Errorf("%d descriptors: %d came, %v", n, len(f.fds), err)
		}
		closeFDs(f.fds)
		r.close()
		b.Close()
		writing.Wait()
	}
}

// A peer with more descriptors than that is refused before the mover hears of it.
func TestOpenOfManyDescriptors(t *testing.T) {
	m := start(t, config("mover"))
	g := &transfer.GPU{Chunks: slices.Repeat([]transfer.Chunk{{FD: 1 << 30, Len: 1}}, maxChunks)}
	p := transfer.Peer{ID: "p", Regions: map[transfer.RegionID]transfer.Memory{}}
	for id := range transfer.RegionID(maxFDs/maxChunks + 1) {
		p.Regions[id] = transfer.Memory{Kind: transfer.CUDAFD, FD: -1, Len: 1, GPU: g}
	}
	if _, err := m.Open(t.Context(), p); !errors.Is(err, transfer.ErrMemory) || !strings.Contains(err.Error(), "descriptors") {
		t.Errorf("open: %v", err)
	}
}

// Frames of any size, cut anywhere, with descriptors, arrive as they were sent.
func TestFrames(t *testing.T) {
	a, b := conns(t)
	sizes := []int{0, 1, readBuffer - headBytes, readBuffer, 3 * readBuffer, 5, 1 << 20, 0}
	go func() {
		var buf []byte
		for i, n := range sizes {
			f := frame{kind: kindOpen, id: uint64(i), body: make([]byte, n)}
			for range i * 60 {
				fd, _ := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
				f.fds = append(f.fds, fd)
			}
			for k := range f.body {
				f.body[k] = byte(i + k)
			}
			buf, _ = writeFrame(a, buf, &f)
		}
		a.Close()
	}()
	r := newFrameReader(b)
	defer r.close()
	for i, n := range sizes {
		f, err := r.next()
		if err != nil || f.id != uint64(i) || len(f.body) != n || len(f.fds) != i*60 {
			t.Fatalf("frame %d: %d bytes, %d descriptors, %v", i, len(f.body), len(f.fds), err)
		}
		for k := range f.body {
			if f.body[k] != byte(i+k) {
				t.Fatalf("frame %d differs at %d", i, k)
			}
		}
		closeFDs(f.fds)
	}
	if _, err := r.next(); err != io.EOF {
		t.Errorf("after the last frame: %v", err)
	}
	if len(r.buf) != 0 && cap(r.buf) > 1<<20 {
		t.Errorf("the buffer stays at %d bytes", cap(r.buf))
	}
}

func conns(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fa, fb, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	if a, err = fileConn(fa); err != nil {
		t.Fatal(err)
	}
	if b, err = fileConn(fb); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// serveBytes gives a mover b as its whole input and returns how it ended.
func serveBytes(t testing.TB, b []byte) error {
	sidecar, child := conns(t)
	go func() { _, _ = io.Copy(io.Discard, sidecar) }() // ends with the connection
	done := make(chan error, 1)
	go func() { done <- serve(child, host{copier: plain.Copier{}}, false, nil, nil) }()
	_, _ = sidecar.Write(b)
	_ = sidecar.CloseWrite()
	return <-done
}

func TestServeRefuses(t *testing.T) {
	good := (&frame{kind: kindConfig, body: settings{4, 1, 0}.append(nil)}).append(nil, 0)
	with := func(f frame) []byte { return f.append(append([]byte(nil), good...), 0) }
	huge := appendHead(nil, kindConfig, 1, maxBody+1, 0)
	for name, c := range map[string]struct {
		b  []byte
		ok bool
	}{
		"nothing":           {nil, true},
		"configuration":     {good, true},
		"half a head":       {good[:7], false},
		"half a body":       {good[:20], false},
		"too large":         {huge, false},
		"pull first":        {(&frame{kind: kindPull}).append(nil, 0), false},
		"bad configuration": {(&frame{kind: kindConfig, body: []byte{1}}).append(nil, 0), false},
		"no workers":        {(&frame{kind: kindConfig, body: settings{1, 1 << 20, 0}.append(nil)}).append(nil, 0), false},
		"unknown kind":      {with(frame{kind: 99}), false},
		"short pull":        {with(frame{kind: kindPull, body: []byte{1, 2}}), false},
		"missing fd":        {with(frame{kind: kindRegister, body: appendMemory(nil, 1, transfer.Memory{Kind: transfer.Memfd, Len: 1})}), false},
		"claimed fd":        {appendHead(append([]byte(nil), good...), kindRegister, 1, 0, 1), false},
		"cancel of nothing": {with(frame{kind: kindCancel, id: 5}), true},
		"pull of no link":   {with(frame{kind: kindPull, body: appendJob(make([]byte, 8), &lower.Job{})}), true},
		"slot out of range": {with(frame{kind: kindTemplate, body: []byte{0, 0, 0, 0, 99, 0, 0, 0}}), false},
		"bad region close":  {with(frame{kind: kindUnregister, body: make([]byte, 9)}), false},
		"unknown region":    {with(frame{kind: kindUnregister, body: make([]byte, 4)}), true},
		"unknown link":      {with(frame{kind: kindCloseLink, body: make([]byte, 4)}), true},
	} {
		if err := serveBytes(t, c.b); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What no mover says ends that mover, and nothing else.
func TestBabblingMover(t *testing.T) {
	for name, b := range map[string][]byte{
		"kind":   (&frame{kind: 77}).append(nil, 0),
		"answer": (&frame{kind: kindAnswer, body: []byte{1}}).append(nil, 0),
	} {
		sidecar, child := conns(t)
		exited := make(chan struct{})
		go func() {
			defer close(exited)
			hello := frame{kind: kindHello}
			_, _ = child.Write(append(hello.append(nil, 0), b...))
			_, _ = io.Copy(io.Discard, child)
		}()
		l, err := begin(&life{pid: 1, conn: sidecar, end: func() { child.Close() }, exited: exited,
			status: func() error { return nil }}, Config{}.withDefaults())
		if err != nil {
			t.Fatal(err)
		}
		<-l.gone
		if !errors.Is(l.why, errWire) {
			t.Errorf("%s: %v", name, l.why)
		}
		if err := l.do(context.Background(), frame{kind: kindOpen}, nil); !errors.Is(err, transfer.ErrMover) {
			t.Errorf("%s: a request of the dead: %v", name, err)
		}
	}
}

func FuzzServe(f *testing.F) {
	b := (&frame{kind: kindConfig, body: settings{4, 1, 0}.append(nil)}).append(nil, 0)
	open := appendText(le.AppendUint32(nil, 1), "p")
	b = (&frame{kind: kindOpen, id: 1, body: le.AppendUint32(open, 0)}).append(b, 0)
	b = (&frame{kind: kindTemplate, body: le.AppendUint32(le.AppendUint32(nil, 1), 0)}).append(b, 0)
	b = (&frame{kind: kindPull, id: 2, body: appendJob(le.AppendUint32(le.AppendUint32(nil, 1), 0), &lower.Job{})}).append(b, 0)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) { _ = serveBytes(t, b) })
}

func FuzzDecode(f *testing.F) {
	f.Add(answer{bytes: 1, err: transfer.ErrBusy}.append(nil))
	f.Add(appendJob(nil, &lower.Job{SrcBlocks: []int32{1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeAnswer(b)
		_, _ = decodeSettings(b)
		var j lower.Job
		(&reader{b: b}).job(&j)
		(&reader{b: b}).sum()
		fds := []int{-1, -1}
		_, _, _ = decodePeer(b, &fds)
	})
}
