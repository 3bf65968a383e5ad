package mover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer"
)

// life is one child, from its hello to its seen exit. Three goroutines serve it: one
// writes, one reads, one waits for the exit; all have ended when gone closes.
type life struct {
	pid    int
	conn   *net.UnixConn
	raw    syscall.RawConn // of conn
	end    func()          // SIGKILL, or its like
	exited <-chan struct{} // the process is gone
	status func() error    // how it went; valid after exited
	most   int             // frames in queue beyond which nothing new is taken
	wake   chan struct{}   // one place: queue is not empty
	gone   chan struct{}   // closed when all that hung on the child was settled
	why    error           // valid once gone is closed
	// withdrawn closes when the Mover has noticed gone.
	withdrawn chan struct{}

	rmu     sync.Mutex     // before mu
	reader  *frameReader   // under rmu
	broken  error          // under rmu: nothing more is read
	looking sync.Mutex     // one goroutine looks at a time
	lookers sync.WaitGroup // added to under mu

	mu      sync.Mutex
	queue   []frame // to the writer
	writing bool    // the writer has frames in hand: what comes now goes behind them
	scratch []byte  // of sendNow
	calls   map[uint64]*call
	tickets map[uint64]settler
	nextID  uint64 // of requests and pulls
	links   uint32 // numbers given to links
	dead    bool   // exit seen: nothing is added any more
	killed  error
	ended   bool // hangUp was called: an end of the stream is orderly
}

// settler is what an answer, or the exit, ends.
type settler interface{ settle(n int64, err error) }

// call is a request that waits for its answer.
type call struct {
	answer chan answer // one place
	undo   *frame      // when nobody waits any more and the answer is yes
}

// spawnChild starts a process and waits for its hello.
func spawnChild(cmd *exec.Cmd, cfg Config) (*life, error) {
	theirs, ours, err := socketPair()
	if err != nil {
		return nil, err
	}
	conn, err := fileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{theirs}
	c, err := lifeline.Start(cmd)
	theirs.Close()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("mover: %w", err)
	}
	return begin(&life{pid: c.PID(), conn: conn, end: c.Kill, exited: c.Exited(), status: func() error {
		if err, said := c.Err(), c.Stderr(); said != "" {
			return fmt.Errorf("%v; it said:\n%s", orExited(err), said)
		}
		return c.Err()
	}}, cfg)
}

func orExited(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// spawnLocal has the other end served on a goroutine, which ends with the connection.
func spawnLocal(serve func(conn *net.UnixConn, stop <-chan struct{}) error, cfg Config) (*life, error) {
	theirs, ours, err := socketPair()
	if err != nil {
		return nil, err
	}
	other, err := fileConn(theirs)
	if err != nil {
		ours.Close()
		return nil, err
	}
	conn, err := fileConn(ours)
	if err != nil {
		other.Close()
		return nil, err
	}
	exited, stop := make(chan struct{}), make(chan struct{})
	var how error
	go func() {
		defer close(exited)
		how = serve(other, stop)
	}()
	return begin(&life{pid: os.Getpid(), conn: conn, end: sync.OnceFunc(func() { close(stop) }),
		exited: exited, status: func() error { return how }}, cfg)
}

// begin waits for the child's hello and starts what serves it.
func begin(l *life, cfg Config) (*life, error) {
	l.reader = newFrameReader(l.conn)
	var err error
	if l.raw, err = l.conn.SyscallConn(); err != nil {
		l.end()
		<-l.exited
		l.conn.Close()
		return nil, fmt.Errorf("mover: socket: %w", err)
	}
	l.most = 2*cfg.MaxOpen + 64 // a template and a job for each ticket, and some requests
	l.wake, l.gone, l.withdrawn = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	l.calls, l.tickets = map[uint64]*call{}, map[uint64]settler{}
	ctx, stop := context.WithTimeout(context.Background(), cfg.StartTimeout)
	defer stop()
	cut := context.AfterFunc(ctx, func() { l.conn.Close() })
	f, err := l.reader.next()
	if err == nil && f.kind != kindHello {
		err = fmt.Errorf("%w: kind %d instead of a hello", errWire, f.kind)
	}
	if err != nil || !cut() {
		l.end()
		<-l.exited
		l.conn.Close()
		l.reader.close()
		if errors.Is(err, io.EOF) {
			err = errors.New("it exited before it served")
		}
		return nil, fmt.Errorf("%w: pid %d: %w: %v", transfer.ErrMover, l.pid, err, orExited(l.status()))
	}
	l.reader.nowait = true
	read, written := make(chan error, 1), make(chan struct{})
	go func() { read <- l.read() }()
	go func() { defer close(written); l.write() }()
	go l.mourn(read, written)
	return l, nil
}

// write sends what is queued until the child is gone.
func (l *life) write() {
	var buf []byte
	var batch []frame
	var err error
	for {
		select {
		case <-l.wake:
		case <-l.exited:
			return
		}
		l.mu.Lock()
		batch, l.queue = l.queue, batch[:0]
		l.writing = true
		l.mu.Unlock()
		for i := range batch {
			if err != nil { // the reader notices too, and ends it all
				closeFDs(batch[i].fds)
				continue
			}
			buf, err = writeFrame(l.conn, buf, &batch[i])
		}
		clear(batch)
		if cap(buf) > 1<<20 {
			buf = nil
		}
		l.mu.Lock()
		l.writing = false
		l.mu.Unlock()
	}
}

// send writes a frame without descriptors at once when nothing is queued and the
// socket takes it, which saves a pull the wake of the writer; else it queues it.
// Caller holds mu and has seen that the child is not dead.
func (l *life) send(f frame) {
	if l.writing || len(l.queue) > 0 {
		l.push(f)
		return
	}
	l.scratch = f.append(l.scratch[:0], 0)
	n := 0
	_ = l.raw.Write(func(fd uintptr) bool {
		n, _ = unix.SendmsgN(int(fd), l.scratch, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	})
	// A failure leaves all of it to the writer, which will see the same.
	if rest := l.scratch[max(n, 0):]; len(rest) > 0 {
		l.push(frame{body: bytes.Clone(rest)})
	}
	if cap(l.scratch) > 1<<20 {
		l.scratch = nil
	}
}

// push queues a frame. Caller holds mu and has seen that the child is not dead.
func (l *life) push(f frame) {
	l.queue = append(l.queue, f)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// room is nil while requests and pulls may be queued. Caller holds mu.
func (l *life) room() error {
	switch {
	case l.dead:
		return l.diedErr()
	case len(l.queue) >= l.most:
		return fmt.Errorf("%w: %d messages wait for pid %d to read them", transfer.ErrFull, len(l.queue), l.pid)
	}
	return nil
}

// mourn waits for the end of the stream and for the exit, and only then settles what
// hung on the child: an answer that was on its way still counts.
func (l *life) mourn(read <-chan error, written <-chan struct{}) {
	err := <-read
	l.mu.Lock()
	orderly := l.ended && errors.Is(err, io.EOF)
	l.mu.Unlock()
	if !orderly {
		l.end() // a child that cannot answer is of no use, and its exit is the proof
	}
	<-l.exited
	l.conn.Close()
	<-written
	l.silence(err)
	l.mu.Lock()
	l.dead = true
	switch how := l.status(); {
	case l.killed != nil:
		l.why = fmt.Errorf("%w (%s)", l.killed, orExited(how))
	case errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed):
		l.why = how
	default:
		l.why = fmt.Errorf("%w (%s)", err, orExited(how))
	}
	for i := range l.queue {
		closeFDs(l.queue[i].fds)
	}
	calls, tickets := l.calls, l.tickets
	l.calls, l.tickets, l.queue = nil, nil, nil
	l.mu.Unlock()
	l.lookers.Wait()
	for _, c := range calls {
		c.answer <- answer{err: l.diedErr()}
	}
	for _, k := range tickets {
		k.settle(0, l.diedErr())
	}
	close(l.gone)
}

func (l *life) diedErr() error {
	return fmt.Errorf("%w: pid %d: %s", transfer.ErrMover, l.pid, orExited(l.why))
}

func (l *life) isGone() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

func (l *life) kill(why error) {
	l.mu.Lock()
	if l.killed == nil {
		l.killed = why
	}
	l.mu.Unlock()
	l.end()
}

// hangUp tells the child that no more comes: it ends its copies and exits.
func (l *life) hangUp() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	_ = l.conn.CloseWrite()
}

// cancel passes a Cancel on. It is queued whatever room there is: each ticket has one.
func (l *life) cancel(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.tickets[id]; open && !l.dead {
		l.push(frame{kind: kindCancel, id: id})
	}
}

// do is ask for an answer that says no more than yes or why not.
func (l *life) do(ctx context.Context, f frame, undo *frame) error {
	_, err := l.ask(ctx, f, undo)
	return err
}

// ask is answer for one that is a number.
func (l *life) ask(ctx context.Context, f frame, undo *frame) (int64, error) {
	a, err := l.answer(ctx, f, undo)
	return a.bytes, err
}

// answer sends f, whose descriptors it owns, and waits for the answer. When ctx ends
// first and the answer turns out to be yes, undo is sent.
func (l *life) answer(ctx context.Context, f frame, undo *frame) (answer, error) {
	c := &call{answer: make(chan answer, 1)}
	l.mu.Lock()
	if err := l.room(); err != nil {
		l.mu.Unlock()
		closeFDs(f.fds)
		return answer{}, err
	}
	l.nextID++
	f.id = l.nextID
	l.calls[f.id] = c
	l.push(f)
	l.mu.Unlock()
	select {
	case a := <-c.answer:
		return a, a.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	_, waiting := l.calls[f.id]
	c.undo = undo
	l.mu.Unlock()
	if !waiting { // the answer was faster than ctx
		a := <-c.answer
		return a, a.err
	}
	return answer{}, context.Cause(ctx)
}
