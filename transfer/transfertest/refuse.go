package transfertest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
)

// copyInto runs the Go reference of j into want, which is a copy of rank's memory.
func copyInto(want [][]byte, w *world, t *testing.T, rank layout.Rank, pair int, j lower.Job) {
	t.Helper()
	tm := w.template(t, pair)
	ns, err := tm.Nests(nil, j)
	if err != nil {
		t.Fatal(err)
	}
	var dst transfer.Buffers
	for _, b := range want {
		dst = append(dst, transfer.Mapped{Addr: address(b), Len: int64(len(b))})
	}
	if _, err := (plain.Copier{}).Copy(t.Context(), ns, mapped(w.src[tm.Ranks().Src]), dst); err != nil {
		t.Fatal(err)
	}
}

// A plan that says more than the memory holds is refused before the first byte.
func testBounds(t *testing.T, e Env) {
	s := Shapes()["tp2 to tp1"]
	w := newWorld(t, s, e)
	j := s.job(0, layout.Span{Hi: 600})
	j.SrcBlocks[37], j.DstBlocks[37] = s.SrcMem.Blocks-1, s.DstMem.Blocks-1
	want := w.shadow(t, 0, nil, nil)
	short := func(m transfer.Memory) transfer.Memory { m.Len -= 4096; return m }

	regions := w.register(t, e.Backend, 0)
	p := w.peer(0)
	p.Regions[0] = short(p.Regions[0])
	l, err := e.Backend.Open(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := try(t, l, w.template(t, 0), j); !errors.Is(err, transfer.ErrBounds) {
		t.Errorf("source too small: %v, want ErrBounds", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}

	l = w.open(t, e.Backend, 0)
	if err := regions[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := try(t, l, w.template(t, 0), j); !errors.Is(err, transfer.ErrBounds) {
		t.Errorf("destination not registered: %v, want ErrBounds", err)
	}
	if _, err := e.Backend.Register(t.Context(), 0, short(w.dst[0][0].Memory())); err != nil {
		t.Fatal(err)
	}
	if err := try(t, l, w.template(t, 0), j); !errors.Is(err, transfer.ErrBounds) {
		t.Errorf("destination too small: %v, want ErrBounds", err)
	}
	equal(t, w.dst[0], want)
}

func testBadJob(t *testing.T, e Env) {
	s := set(t, e)
	want := s.shadow(t, 0, nil, nil)
	for name, edit := range map[string]func(*lower.Job){
		"block":  func(j *lower.Job) { j.DstBlocks[2] = 1 << 20 },
		"source": func(j *lower.Job) { j.SrcBlocks[2] = -1 },
		"slot":   func(j *lower.Job) { j.DstSlot = 99 },
		"pair":   func(j *lower.Job) { j.Pair = 1 },
		"table":  func(j *lower.Job) { j.SrcBlocks = j.SrcBlocks[:1] },
		"tokens": func(j *lower.Job) { j.Tokens = layout.Span{Lo: 9, Hi: 3} },
	} {
		j := s.shape.job(0, layout.Span{Hi: 100})
		edit(&j)
		if err := try(t, s.link, s.template(t, 0), j); !errors.Is(err, lower.ErrJob) {
			t.Errorf("%s: %v, want lower.ErrJob", name, err)
		}
	}
	equal(t, s.dst[0], want)
}

// What cannot be mapped is refused with ErrMemory, with a word on what is wrong, and
// its descriptor is closed all the same.
func testMemoryRefused(t *testing.T, e Env) {
	const size = 8192
	file := func(seals int, off, n int64) func() transfer.Memory {
		return func() transfer.Memory {
			return transfer.Memory{Kind: transfer.Memfd, FD: File(t, size, seals), Off: off, Len: n}
		}
	}
	good := e.Alloc(t, size)
	cases := map[string]struct {
		m    func() transfer.Memory
		says string
	}{
		"no kind":  {func() transfer.Memory { return transfer.Memory{Len: 5} }, "kind"},
		"no bytes": {func() transfer.Memory { m := good.Memory(); m.Len = 0; return m }, "length"},
		"negative": {func() transfer.Memory { m := good.Memory(); m.Off = -4096; return m }, "offset"},
	}
	if good.Memory().Kind == transfer.Memfd {
		cases["unsealed"] = struct {
			m    func() transfer.Memory
			says string
		}{file(0, 0, size), "F_SEAL_SHRINK"}
		cases["too small"] = struct {
			m    func() transfer.Memory
			says string
		}{file(unix.F_SEAL_SHRINK, 4096, size), "8192"}
		cases["far outside"] = struct {
			m    func() transfer.Memory
			says string
		}{file(unix.F_SEAL_SHRINK, 1<<62, 1<<62), "offset"}
	}
	for name, c := range cases {
		m := c.m()
		check := closedAfter(m)
		_, err := e.Backend.Register(t.Context(), 0, m)
		if !errors.Is(err, transfer.ErrMemory) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: Register: %v, want ErrMemory with %q", name, err, c.says)
		}
		probe(t, e)
		check(t, name+": Register")
		m = c.m()
		check = closedAfter(m)
		_, err = e.Backend.Open(t.Context(), transfer.Peer{ID: "p", Regions: map[transfer.RegionID]transfer.Memory{0: m}})
		if !errors.Is(err, transfer.ErrMemory) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: Open: %v, want ErrMemory with %q", name, err, c.says)
		}
		probe(t, e)
		check(t, name+": Open")
	}
	if _, err := e.Backend.Register(t.Context(), 0, good.Memory()); err != nil {
		t.Errorf("good memory after the refusals: %v", err)
	}
}

// probe is one more round trip: whoever passes descriptors on has closed its own by then.
func probe(t *testing.T, e Env) {
	t.Helper()
	l, err := e.Backend.Open(t.Context(), transfer.Peer{ID: "probe"})
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		t.Error(err)
	}
}

func closedAfter(m transfer.Memory) func(*testing.T, string) {
	if m.Kind != transfer.Memfd {
		return func(*testing.T, string) {}
	}
	var was unix.Stat_t
	_ = unix.Fstat(m.FD, &was)
	return func(t *testing.T, what string) {
		t.Helper()
		if !closedFD(m.FD, was) {
			t.Errorf("%s left descriptor %d open", what, m.FD)
		}
	}
}

func testRegisterTwice(t *testing.T, e Env) {
	s := set(t, e)
	if _, err := e.Backend.Register(t.Context(), 0, s.dst[0][0].Memory()); !errors.Is(err, transfer.ErrBusy) {
		t.Errorf("second Register: %v, want ErrBusy", err)
	}
	j := s.shape.job(0, layout.Span{Hi: 100})
	if err := try(t, s.link, s.template(t, 0), j); err != nil {
		t.Errorf("the first registration suffered: %v", err)
	}
	for range 2 {
		if err := s.reg[0].Close(); err != nil {
			t.Errorf("region close: %v", err)
		}
	}
	if _, err := e.Backend.Register(t.Context(), 0, s.dst[0][0].Memory()); err != nil {
		t.Errorf("Register after close: %v", err)
	}
	if err := try(t, s.link, s.template(t, 0), j); err != nil {
		t.Errorf("pull after registering anew: %v", err)
	}
}

func testCloseBusy(t *testing.T, e Env) {
	s, release := set(t, e), hold(t, e)
	k := pull(t, s.link, s.template(t, 0), s.shape.job(0, layout.Span{Hi: 100}))
	if err := s.link.Close(); !errors.Is(err, transfer.ErrBusy) {
		t.Errorf("link close while busy: %v, want ErrBusy", err)
	}
	if e.Kill == nil { // a held process cannot say which regions its tickets use
		if err := s.reg[0].Close(); !errors.Is(err, transfer.ErrBusy) {
			t.Errorf("region close while busy: %v, want ErrBusy", err)
		}
	}
	release()
	if err := wait(t, k); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.link.Close(); err != nil {
			t.Errorf("link close after Done: %v", err)
		}
	}
	if err := s.reg[0].Close(); err != nil {
		t.Errorf("region close after Done: %v", err)
	}
	if err := try(t, s.link, s.template(t, 0), s.shape.job(0, layout.Span{Hi: 1})); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("pull on a closed link: %v, want ErrClosed", err)
	}
}

func testClosed(t *testing.T, e Env) {
	s, release := set(t, e), hold(t, e)
	k := pull(t, s.link, s.template(t, 0), s.shape.job(0, layout.Span{Hi: 100}))
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := e.Backend.Close(ctx); err == nil {
		t.Error("Close with an open ticket and no time: no error")
	}
	select {
	case <-k.Done():
		t.Error("Close settled a ticket whose copy is held")
	default:
	}
	if _, err := s.link.Pull(t.Context(), s.template(t, 0), s.shape.job(0, layout.Span{Hi: 1})); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("Pull after Close: %v, want ErrClosed", err)
	}
	if _, err := e.Backend.Open(t.Context(), s.peer(0)); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("Open after Close: %v, want ErrClosed", err)
	}
	if _, err := e.Backend.Register(t.Context(), 9, s.dst[0][0].Memory()); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("Register after Close: %v, want ErrClosed", err)
	}
	release()
	if err := e.Backend.Close(t.Context()); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := wait(t, k); err != nil {
		t.Errorf("the open ticket: %v", err)
	}
	if err := errors.Join(s.link.Close(), s.reg[0].Close()); err != nil {
		t.Errorf("closing what the backend has released: %v", err)
	}
}
