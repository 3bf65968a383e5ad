package direct

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

// Link implements transfer.Link.
type Link struct {
	b    *Backend
	peer transfer.PeerID
	bufs transfer.Buffers // read-only
	maps []mapping

	// Under b.mu.
	open int // tickets
	gone bool

	mu     sync.Mutex
	fitted *lower.Template // under mu: the last template that the copier fits
	far    bool            // under mu: fitted copies between GPUs alone
}

// nests are recycled: a job of scattered blocks has thousands.
var nests = sync.Pool{New: func() any { return new([]lower.Nest) }}

// Pull implements transfer.Link. Lowering happens here, on the caller's goroutine.
func (l *Link) Pull(ctx context.Context, t *lower.Template, j lower.Job) (transfer.Ticket, error) {
	p, err := l.Begin(ctx, t, j, nil)
	if err != nil {
		return nil, err
	}
	p.Copy()
	return p.Ticket, nil
}

// Begun is a pull that was booked. Whoever began it calls Copy next, whatever has become of the
// ticket: it copies, if the caller is to, or else a worker does.
type Begun struct {
	Ticket transfer.Ticket
	Bytes  int64
	Here   bool // Copy copies, and returns after it
	GPUs   bool // from GPU to GPU alone
	k      *ticket
}

// Copy is called once.
func (p *Begun) Copy() {
	if p.Here {
		p.k.copy()
	}
}

// Begin is the first half of Pull. settled, which may be nil, is called right after Done has
// closed: on the goroutine that copied, for an answer without another one's wake. That
// goroutine copies nothing else meanwhile, and Backend.Close does not wait for settled when
// the caller copied.
func (l *Link) Begin(ctx context.Context, t *lower.Template, j lower.Job, settled func(bytes int64, err error)) (p Begun, err error) {
	if err := ctx.Err(); err != nil {
		return p, l.b.fail("pull", l.peer, err)
	}
	far, err := l.fits(t)
	if err != nil {
		return p, l.b.fail("pull", l.peer, err)
	}
	ns := nests.Get().(*[]lower.Nest)
	if p.Bytes, err = t.Bytes(j); err == nil {
		*ns, err = t.Nests((*ns)[:0], j)
	}
	if err == nil {
		p.k, p.Here, err = l.submit(ns, p.Bytes, far, settled)
	}
	if err != nil {
		nests.Put(ns)
		return p, l.b.fail("pull", l.peer, err)
	}
	p.Ticket, p.GPUs = p.k, far
	return p, nil
}

// fits asks the copiers once per template and link.
func (l *Link) fits(t *lower.Template) (far bool, err error) {
	l.b.mu.Lock()
	dst := l.b.bufs
	l.b.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fitted == t {
		return l.far, nil
	}
	far = true // nothing is the host's
	for _, n := range t.Sample(nil) {
		c := l.b.copier // which converts, also what is on a GPU
		if wayOf(&n, l.bufs, dst) == byDevice {
			c = l.b.device
		}
		far = far && isGPU(dst, n.Dst) && (n.From == 0 || isGPU(l.bufs, n.Src))
		if err := c.Fits(n); err != nil {
			return false, err
		}
	}
	l.fitted, l.far = t, far
	return far, nil
}

// submit books the ticket and its regions, and queues it, unless the caller is to
// copy it now.
func (l *Link) submit(ns *[]lower.Nest, size int64, far bool, settled func(int64, error)) (k *ticket, now bool, err error) {
	b := l.b
	k = &ticket{l: l, ns: ns, settled: settled, done: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed || l.gone:
		return nil, false, transfer.ErrClosed
	case b.open == cap(b.queue):
		return nil, false, fmt.Errorf("%w: %d: wait for one of them", transfer.ErrFull, b.open)
	}
	for i := range *ns {
		id := transfer.RegionID((*ns)[i].Dst)
		if i > 0 && (*ns)[i].Dst == (*ns)[i-1].Dst {
			continue
		}
		if r := b.regions[id]; r != nil { // the copier refuses what is not registered
			r.refs++
			k.regions = append(k.regions, r)
		}
	}
	k.dst = b.bufs
	most := b.inline
	if far {
		most = b.inlineGPU
	}
	now = b.open == 0 && size <= most
	b.open++
	l.open++
	if !now {
		b.queue <- k
	}
	return k, now, nil
}

// Close implements transfer.Link.
func (l *Link) Close() error {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	if l.gone || l.b.released {
		return nil
	}
	if l.open > 0 {
		return l.b.fail("close", l.peer, fmt.Errorf("%w: %d tickets", transfer.ErrBusy, l.open))
	}
	l.gone = true
	delete(l.b.links, l)
	return l.unmap()
}

func (l *Link) unmap() error {
	var errs []error
	for i := range l.maps {
		errs = append(errs, l.maps[i].unmap())
	}
	return errors.Join(errs...)
}

// work is one worker; it ends when Close closes the queue.
func (b *Backend) work() {
	for k := range b.queue {
		select {
		case <-b.drain:
			k.settle(0, fmt.Errorf("%w: before the copy began", transfer.ErrClosed))
			continue
		default:
		}
		k.copy()
	}
}

// ticket implements transfer.Ticket.
type ticket struct {
	l       *Link
	ns      *[]lower.Nest
	dst     transfer.Buffers
	regions []*region
	settled func(int64, error)
	ctx     context.Context // the pull's own, ended by Cancel alone
	cancel  context.CancelFunc

	done  chan struct{}
	bytes int64 // valid once done is closed
	err   error // valid once done is closed
}

func (k *ticket) Done() <-chan struct{} { return k.done }
func (k *ticket) Cancel()               { k.cancel() }

func (k *ticket) Err() error {
	select {
	case <-k.done:
		return k.err
	default:
		return nil
	}
}

func (k *ticket) Bytes() int64 {
	select {
	case <-k.done:
		return k.bytes
	default:
		return 0
	}
}

// copy runs the nests and settles, unless the copier cannot say that they have ended.
func (k *ticket) copy() {
	n, err := k.l.b.copy(k.ctx, *k.ns, k.l.bufs, k.dst)
	if errors.Is(err, transfer.ErrLost) {
		k.l.b.lost(err)
		return
	}
	k.settle(n, err)
}

// settle returns what the ticket held before it closes done: whoever sees Done may
// close the link and the regions.
func (k *ticket) settle(n int64, err error) {
	k.cancel()
	nests.Put(k.ns)
	b := k.l.b
	if err != nil {
		err = b.fail("pull", k.l.peer, err)
	}
	b.mu.Lock()
	for _, r := range k.regions {
		r.refs--
	}
	k.l.open--
	b.open--
	if b.open == 0 {
		b.idle.Broadcast()
	}
	b.mu.Unlock()
	k.bytes, k.err = n, err
	close(k.done)
	if k.settled != nil {
		k.settled(n, err)
	}
}
