package mover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/batonkv/baton/kernels/rows"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/direct"
	"github.com/batonkv/baton/transfer/lower"
)

// Serve is the whole life of a mover process: it copies for the sidecar at the other
// end of the socket fd, which it takes over, and returns when the sidecar lets go, the
// lifeline or ctx ends. A copy in progress goes on to its end first; pulls behind it
// do not begin. The caller exits then.
func Serve(ctx context.Context, fd int) error {
	c, err := rows.New(rows.Config{})
	if err != nil {
		return err
	}
	syscall.CloseOnExec(fd)
	conn, err := fileConn(os.NewFile(uintptr(fd), "sidecar"))
	if err != nil {
		return fmt.Errorf("%w: sidecars start movers, with a socket as descriptor %d", err, fd)
	}
	d, err := newDevice()
	if err != nil {
		return err
	}
	h := host{copier: c, device: d, lost: lost, inline: inlineBytes, inlineGPU: math.MaxInt64, brief: briefBytes}
	return serve(conn, h, false, ctx.Done(), lifeline.Watch())
}

// host is what a mover copies with, and how.
type host struct {
	copier transfer.Copier
	device direct.Device // nil: no GPU memory
	lost   func(error)   // nil: tickets whose copies are lost stay open

	inline, inlineGPU int64 // bytes up to which the reading goroutine copies by itself
	brief             int64 // bytes up to which nobody reads meanwhile
}

// lost ends the process: its exit is the proof that its copies have ended.
func lost(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// What the reading goroutine copies keeps the next message waiting: for some 50 microseconds of
// copies on the host, and for some 200 of copies between GPUs, which take turns on the link
// anyhow. It copies what is more between GPUs, too, and lets another goroutine read meanwhile:
// then nothing waits for that one's wake.
const (
	inlineBytes = 256 << 10
	briefBytes  = 64 << 20
)

// server is the mover's half of one socket pair.
type server struct {
	voice
	host
	local bool       // in one process with the sidecar, so that Local memory means something
	ended chan error // one place: how reading ended

	// Used by the reading goroutine alone.
	r       *frameReader
	look    time.Duration   // how long it looks for the next frame after a copy between GPUs
	b       *direct.Backend // made by the first frame
	links   map[uint32]*served
	regions map[transfer.RegionID]transfer.Region
	job     lower.Job // tables are reused

	helpers sync.WaitGroup // goroutines that read, copy or add up
	adding  atomic.Int32   // how many add up
	tmu     sync.Mutex
	pulls   map[uint64]transfer.Ticket // under tmu: open, for cancel
}

// served is a link and the templates that were shipped for it.
type served struct {
	*direct.Link
	templates [maxTemplates]slot
}

type slot struct {
	t   *lower.Template
	err error // why there is none
}

func serve(conn *net.UnixConn, h host, local bool, stop, orphaned <-chan struct{}) error {
	s := &server{voice: voice{conn: conn}, host: h, local: local, links: map[uint32]*served{},
		regions: map[transfer.RegionID]transfer.Region{}, pulls: map[uint64]transfer.Ticket{},
		r: newFrameReader(conn), ended: make(chan error, 1)}
	return s.attend(stop, orphaned, func() error {
		s.helpers.Go(s.loop)
		err := <-s.ended
		if s.b != nil {
			s.b.Drain()
			err = errors.Join(err, s.b.Close(context.Background())) // as long as the copy takes
		}
		s.helpers.Wait()
		s.r.close()
		return err
	})
}

// voice is a mover's end of the socket pair.
type voice struct {
	conn *net.UnixConn
	wmu  sync.Mutex
	out  []byte // under wmu
}

// attend says hello and serves, whose reads end when stop or orphaned do. It closes the
// connection.
func (v *voice) attend(stop, orphaned <-chan struct{}, serve func() error) error {
	ended := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-stop:
		case <-orphaned:
		case <-ended:
			return
		}
		_ = v.conn.CloseRead() // leaves answers a way out
	})
	err := v.write(&frame{kind: kindHello})
	if err == nil {
		err = serve()
	}
	close(ended)
	watch.Wait()
	v.conn.Close()
	return err
}

func (v *voice) write(f *frame) (err error) {
	v.wmu.Lock()
	defer v.wmu.Unlock()
	v.out, err = writeFrame(v.conn, v.out, f)
	return err
}

// answer answers a request. A sidecar that is gone is noticed by the reader.
func (v *voice) answer(id uint64, n int64, err error) error {
	_ = v.write(&frame{kind: kindAnswer, id: id, body: answer{bytes: n, err: err}.append(nil)})
	return nil
}

// loop handles frames until the other end is gone, which is no error, or until it hands
// reading on.
func (s *server) loop() {
	for {
		f, err := s.r.next()
		s.r.spin = 0
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
			s.ended <- nil
			return
		}
		var copy *direct.Begun
		if err == nil {
			copy, err = s.handle(&f)
		}
		switch {
		case err != nil:
			s.ended <- err
			return
		case copy == nil || !copy.Here:
		case copy.Bytes > s.brief:
			s.expect(copy)
			s.helpers.Go(s.loop)
			copy.Copy()
			return
		default:
			copy.Copy()
			copy.Bytes = 0 // are copied
			s.expect(copy)
		}
	}
}

// expect has the next frame looked for, until some time after a copy between GPUs.
func (s *server) expect(p *direct.Begun) {
	if p.GPUs && s.look > 0 && p.Bytes <= lookBytes {
		s.r.spin = s.look + time.Duration(p.Bytes/lookRate)
	}
}

// handle serves one frame, and may leave a copy to the caller. An error ends the mover: the
// two ends disagree.
func (s *server) handle(f *frame) (*direct.Begun, error) {
	defer func() { closeFDs(f.fds) }() // those that nobody took
	if s.b == nil {
		return nil, s.configure(f)
	}
	switch f.kind {
	case kindRegister:
		return nil, s.register(f)
	case kindUnregister:
		return nil, s.unregister(f)
	case kindOpen:
		return nil, s.open(f)
	case kindCloseLink:
		return nil, s.closeLink(f)
	case kindTemplate:
		return nil, s.template(f)
	case kindPull:
		return s.pull(f)
	case kindSum:
		return nil, s.sum(f)
	case kindCancel:
		s.tmu.Lock()
		k := s.pulls[f.id]
		s.tmu.Unlock()
		if k != nil { // else it has settled and its answer is on the way
			k.Cancel()
		}
		return nil, nil
	}
	return nil, fmt.Errorf("%w: kind %d", errWire, f.kind)
}

func (s *server) configure(f *frame) error {
	if f.kind != kindConfig {
		return fmt.Errorf("%w: kind %d before the configuration", errWire, f.kind)
	}
	c, err := decodeSettings(f.body)
	if err != nil {
		return err
	}
	s.look = min(time.Duration(c.look), maxLook)
	s.b, err = direct.New(direct.Config{Copier: s.copier, Device: s.device, Lost: s.lost, MaxOpen: int(c.maxOpen), Workers: int(c.workers), Inline: s.inline, InlineGPU: s.inlineGPU})
	return err
}

// reachable refuses addresses of another process.
func (s *server) reachable(m transfer.Memory) error {
	if m.Kind == transfer.Local && !s.local {
		return fmt.Errorf("%w: local memory means nothing in a mover's process: attach a memfd", transfer.ErrMemory)
	}
	return nil
}

func (s *server) register(f *frame) error {
	r := reader{b: f.body}
	id, m := r.memory(&f.fds)
	if err := r.end(); err != nil {
		closeMemory(m)
		return err
	}
	if err := s.reachable(m); err != nil {
		return s.answer(f.id, 0, err)
	}
	g, err := s.b.Register(context.Background(), id, m)
	if err == nil {
		s.regions[id] = g
	}
	return s.answer(f.id, 0, err)
}

func (s *server) unregister(f *frame) error {
	r := reader{b: f.body}
	id := transfer.RegionID(r.u32())
	if err := r.end(); err != nil {
		return err
	}
	g := s.regions[id]
	if g == nil {
		return s.answer(f.id, 0, nil)
	}
	err := g.Close()
	if err == nil {
		delete(s.regions, id)
	}
	return s.answer(f.id, 0, err)
}

func (s *server) open(f *frame) error {
	id, p, err := decodePeer(f.body, &f.fds)
	if err != nil {
		closePeer(p)
		return err
	}
	for _, m := range p.Regions {
		if err := s.reachable(m); err != nil {
			closePeer(p)
			return s.answer(f.id, 0, err)
		}
	}
	l, err := s.b.Open(context.Background(), p)
	if d, ok := l.(*direct.Link); ok && err == nil {
		s.links[id] = &served{Link: d}
	}
	return s.answer(f.id, 0, err)
}

func (s *server) closeLink(f *frame) error {
	r := reader{b: f.body}
	id := r.u32()
	if err := r.end(); err != nil {
		return err
	}
	l := s.links[id]
	if l == nil {
		return s.answer(f.id, 0, nil)
	}
	err := l.Close()
	if err == nil {
		delete(s.links, id)
	}
	return s.answer(f.id, 0, err)
}

// slotOf reads the link and slot at the front of a body.
func (s *server) slotOf(r *reader) (*served, *slot, error) {
	l, n := s.links[r.u32()], r.u32()
	if r.err != nil || n >= maxTemplates {
		return nil, nil, fmt.Errorf("%w: template slot %d", errWire, n)
	}
	if l == nil {
		return nil, nil, nil
	}
	return l, &l.templates[n], nil
}

// template keeps a template, or why it is none: the pulls that name it say so.
func (s *server) template(f *frame) error {
	r := reader{b: f.body}
	_, at, err := s.slotOf(&r)
	if err == nil && at != nil {
		at.t, at.err = lower.Decode(r.b)
	}
	return err
}

// pull begins one, whose copy the caller sees to.
func (s *server) pull(f *frame) (*direct.Begun, error) {
	r := reader{b: f.body}
	l, at, err := s.slotOf(&r)
	if err != nil {
		return nil, err
	}
	if r.job(&s.job); r.end() != nil {
		return nil, r.err
	}
	switch {
	case l == nil:
		return nil, s.answer(f.id, 0, transfer.ErrClosed)
	case at.t == nil:
		return nil, s.answer(f.id, 0, errors.Join(lower.ErrTemplate, at.err))
	}
	id := f.id
	p, err := l.Begin(context.Background(), at.t, s.job, func(n int64, err error) {
		s.tmu.Lock()
		delete(s.pulls, id)
		s.tmu.Unlock()
		_ = s.answer(id, n, err)
	})
	if err != nil {
		return nil, s.answer(id, 0, err)
	}
	s.tmu.Lock()
	defer s.tmu.Unlock()
	select {
	case <-p.Ticket.Done(): // answered, or about to be
	default:
		s.pulls[id] = p.Ticket
	}
	return &p, nil
}
