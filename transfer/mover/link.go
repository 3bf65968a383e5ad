package mover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/direct"
	"github.com/batonkv/baton/transfer/lower"
)

// region implements transfer.Region. It keeps the memory for the next child.
type region struct {
	m_ *Mover
	id transfer.RegionID
	m  transfer.Memory // its descriptor is ours

	mu   sync.Mutex // held while a child is asked
	in   *life      // under mu: the child that maps it; nil: none yet
	gone bool       // under mu
}

// Register implements transfer.Backend. While no child runs it waits for the next.
func (m *Mover) Register(ctx context.Context, id transfer.RegionID, mem transfer.Memory) (transfer.Region, error) {
	r := &region{m_: m, id: id, m: mem}
	if err := m.claim(ctx, r); err != nil {
		closeMemory(mem)
		return nil, m.fail("register", "", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l, err := m.child(ctx)
	if err == nil {
		err = r.tell(ctx, l)
	}
	if err != nil {
		r.gone = true
		m.drop(r)
		return nil, m.fail("register", "", err)
	}
	return r, nil
}

// claim takes the region's number.
func (m *Mover) claim(ctx context.Context, r *region) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch taken := m.regions[r.id]; {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case m.closed:
		return transfer.ErrClosed
	case len(r.m.FDs()) > maxChunks:
		return fmt.Errorf("%w: region %d: %d allocations: at most %d", transfer.ErrMemory, r.id, len(r.m.FDs()), maxChunks)
	case r.id >= direct.MaxRegions:
		return fmt.Errorf("%w: region %d: a rank has buffers 0 to %d", transfer.ErrMemory, r.id, direct.MaxRegions-1)
	case taken != nil:
		return fmt.Errorf("%w: region %d is registered already: close it first", transfer.ErrBusy, r.id)
	}
	m.regions[r.id] = r
	return nil
}

func (m *Mover) drop(r *region) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.regions[r.id] == r {
		delete(m.regions, r.id)
		closeMemory(r.m)
	}
}

// tell registers r with l. Caller holds r.mu.
func (r *region) tell(ctx context.Context, l *life) error {
	f := frame{kind: kindRegister, body: appendMemory(nil, r.id, r.m)}
	for _, own := range r.m.FDs() {
		fd, err := unix.FcntlInt(uintptr(own), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeFDs(f.fds)
			return fmt.Errorf("%w: region %d: descriptor %d: %w", transfer.ErrMemory, r.id, own, err)
		}
		f.fds = append(f.fds, fd)
	}
	undo := frame{kind: kindUnregister, body: le.AppendUint32(nil, uint32(r.id))}
	if err := l.do(ctx, f, &undo); err != nil {
		return err
	}
	r.in = l
	return nil
}

// restore registers r with the next child, unless it was closed meanwhile or its
// first Register has not ended.
func (r *region) restore(l *life) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || r.in == nil {
		return nil
	}
	return r.tell(context.Background(), l) // ends with the child at the latest
}

func (r *region) ID() transfer.RegionID { return r.id }

// Close implements transfer.Region. The child is asked: it alone knows which regions
// its tickets use.
func (r *region) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return nil
	}
	if !r.in.isGone() && !r.m_.isReleased() {
		f := frame{kind: kindUnregister, body: le.AppendUint32(nil, uint32(r.id))}
		if err := r.in.do(context.Background(), f, nil); err != nil && !errors.Is(err, transfer.ErrMover) {
			return r.m_.fail("unregister", "", err)
		}
	}
	r.gone = true
	r.m_.drop(r)
	return nil
}

// isReleased reports whether Close has let the child go.
func (m *Mover) isReleased() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stopped
}

// link implements transfer.Link. It belongs to one child and dies with it.
type link struct {
	m    *Mover
	l    *life
	id   uint32
	peer transfer.PeerID
	gpu  bool // the peer's memory is a GPU's

	mu    sync.Mutex
	open  int                        // tickets
	gone  bool                       // closed
	slots map[*lower.Template]uint32 // templates that the child has
	next  uint32                     // slot to fill, or to reuse
}

// Open implements transfer.Backend. While no child runs it waits for the next.
func (m *Mover) Open(ctx context.Context, p transfer.Peer) (transfer.Link, error) {
	l, err := m.child(ctx)
	if err == nil && len(p.ID) > maxText {
		err = fmt.Errorf("%w: name of %d bytes: at most %d", transfer.ErrPeer, len(p.ID), maxText)
	}
	if err == nil && len(p.Regions) > direct.MaxRegions {
		err = fmt.Errorf("%w: %d regions: at most %d", transfer.ErrMemory, len(p.Regions), direct.MaxRegions)
	}
	all := 0
	for id, r := range p.Regions {
		n := len(r.FDs())
		if all += n; err == nil && n > maxChunks {
			err = fmt.Errorf("%w: region %d: %d allocations: at most %d", transfer.ErrMemory, id, n, maxChunks)
		}
	}
	if err == nil && all > maxFDs {
		err = fmt.Errorf("%w: %d descriptors: at most %d: attach fewer, larger allocations", transfer.ErrMemory, all, maxFDs)
	}
	if err != nil {
		closePeer(p)
		return nil, m.fail("open", p.ID, err)
	}
	k := &link{m: m, l: l, peer: p.ID, slots: map[*lower.Template]uint32{}}
	l.mu.Lock()
	l.links++
	k.id = l.links
	l.mu.Unlock()
	f := frame{kind: kindOpen}
	f.body = appendText(le.AppendUint32(nil, k.id), string(p.ID))
	f.body = le.AppendUint32(f.body, uint32(len(p.Regions)))
	for _, id := range slices.Sorted(maps.Keys(p.Regions)) {
		r := p.Regions[id]
		f.body = appendMemory(f.body, id, r)
		f.fds = append(f.fds, r.FDs()...)
		k.gpu = k.gpu || r.Kind == transfer.CUDA || r.Kind == transfer.CUDAFD
	}
	undo := frame{kind: kindCloseLink, body: le.AppendUint32(nil, k.id)}
	if err := l.do(ctx, f, &undo); err != nil {
		return nil, m.fail("open", p.ID, err)
	}
	return k, nil
}

// Pull implements transfer.Link. It never waits: the queue to the child has room for
// every ticket that may be open.
func (k *link) Pull(ctx context.Context, t *lower.Template, j lower.Job) (transfer.Ticket, error) {
	err := context.Cause(ctx)
	var bytes int64
	if err == nil {
		bytes, err = t.Bytes(j) // what is wrong as a whole is refused here; the child checks ids
	}
	var x *ticket
	if err == nil {
		x, err = k.submit(t, &j, bytes)
	}
	if err != nil {
		return nil, k.m.fail("pull", k.peer, err)
	}
	return x, nil
}

func (k *link) submit(t *lower.Template, j *lower.Job, bytes int64) (*ticket, error) {
	if len(j.SrcBlocks) > maxBlocks || len(j.DstBlocks) > maxBlocks {
		return nil, fmt.Errorf("%w: block tables of %d and %d: at most %d", lower.ErrJob, len(j.SrcBlocks), len(j.DstBlocks), maxBlocks)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone {
		return nil, transfer.ErrClosed
	}
	if err := k.m.book(); err != nil {
		return nil, err
	}
	x := &ticket{k: k, done: make(chan struct{})}
	err := k.send(x, t, j, bytes)
	if err != nil {
		k.m.unbook()
		return nil, err
	}
	k.open++
	return x, nil
}

// lookBytes is the most that a pull copies for whose answer is looked, which takes about a
// millisecond at lookRate bytes a nanosecond: what is more waits for a wake all the same.
const (
	lookBytes = 512 << 20
	lookRate  = 400
)

// send ships the template, if the child lacks it, and the job. Caller holds k.mu.
func (k *link) send(x *ticket, t *lower.Template, j *lower.Job, bytes int64) error {
	slot, has := k.slots[t]
	var first *frame
	if !has {
		b, err := t.MarshalBinary()
		if err != nil {
			return err
		}
		if len(b) > maxTemplate {
			return fmt.Errorf("%w: %d bytes: at most %d", lower.ErrTemplate, len(b), maxTemplate)
		}
		slot = k.next
		first = &frame{kind: kindTemplate, body: append(k.head(slot), b...)}
	}
	f := frame{kind: kindPull, body: appendJob(k.head(slot), j)}
	l := k.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.room(); err != nil {
		return err
	}
	if first != nil {
		l.send(*first)
		k.keep(t, slot)
	}
	l.nextID++
	x.id, f.id = l.nextID, l.nextID
	l.tickets[x.id] = x
	l.send(f)
	if k.gpu && k.m.cfg.Look > 0 && bytes <= lookBytes {
		l.look(x.done, k.m.cfg.Look+time.Duration(bytes/lookRate))
	}
	return nil
}

func (k *link) head(slot uint32) []byte {
	return le.AppendUint32(le.AppendUint32(make([]byte, 0, 64), k.id), slot)
}

// keep notes that the child has t in slot, in place of what was there.
func (k *link) keep(t *lower.Template, slot uint32) {
	for old, at := range k.slots {
		if at == slot {
			delete(k.slots, old)
		}
	}
	k.slots[t] = slot
	k.next = (slot + 1) % maxTemplates
}

// Close implements transfer.Link.
func (k *link) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone {
		return nil
	}
	if k.open > 0 {
		return k.m.fail("close", k.peer, fmt.Errorf("%w: %d tickets", transfer.ErrBusy, k.open))
	}
	if !k.l.isGone() && !k.m.isReleased() {
		f := frame{kind: kindCloseLink, body: le.AppendUint32(nil, k.id)}
		if err := k.l.do(context.Background(), f, nil); err != nil && !errors.Is(err, transfer.ErrMover) {
			return k.m.fail("close", k.peer, err)
		}
	}
	k.gone = true
	return nil
}

// book counts a ticket.
func (m *Mover) book() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return transfer.ErrClosed
	case m.open == m.cfg.MaxOpen:
		return fmt.Errorf("%w: %d: wait for one of them", transfer.ErrFull, m.open)
	}
	m.open++
	return nil
}

func (m *Mover) unbook() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open--
	if m.open == 0 {
		close(m.idle)
		m.idle = make(chan struct{})
	}
}

// ticket implements transfer.Ticket.
type ticket struct {
	k    *link
	id   uint64
	once sync.Once // of Cancel

	done  chan struct{}
	bytes int64 // valid once done is closed
	err   error // valid once done is closed
}

// settle gives back what the ticket held before it closes done.
func (x *ticket) settle(n int64, err error) {
	if err != nil {
		err = x.k.m.fail("pull", x.k.peer, err)
	}
	x.k.mu.Lock()
	x.k.open--
	x.k.mu.Unlock()
	x.k.m.unbook()
	x.bytes, x.err = n, err
	close(x.done)
}

func (x *ticket) Done() <-chan struct{} { return x.done }

// Cancel asks the child; the ticket still waits for its answer.
func (x *ticket) Cancel() { x.once.Do(func() { x.k.l.cancel(x.id) }) }

func (x *ticket) Err() error {
	select {
	case <-x.done:
		return x.err
	default:
		return nil
	}
}

func (x *ticket) Bytes() int64 {
	select {
	case <-x.done:
		return x.bytes
	default:
		return 0
	}
}
