// Package client is what an engine rank in Go links to talk to its sidecar: the
// descriptors of its buffers, messages both ways, and what came, to be polled between
// steps. A session that is lost is not the end of the engine: the client attaches again,
// to the same sidecar or to the one that takes its place, and states what the engine
// holds.
//
// Nothing here blocks an engine's loop but Dial and Close. The client itself says Held
// for every decision as it arrives, in order, so Through(n) from the sidecar means that
// every rank's client has decisions 1 to n ready for Decisions(n). It also holds on to
// every mover that maps the buffers: nothing that another sidecar process says reaches
// the engine before the movers of the former one have exited.
package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonkv/baton/internal/pidfd"
	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/handoff"
)

const (
	sendQueue = 4096
	// maxWaiting bounds what an engine may leave unpolled; more is the client's end.
	maxWaiting = 1 << 16
	// closeGrace is how long Close waits for the sidecar to read what is queued.
	closeGrace = time.Second
	// attachLimit bounds one try to attach again.
	attachLimit = 30 * time.Second
	// stable is how long a session must have stood for the next pause to be short again.
	stable = 10 * time.Second
	// defaultDeadline is of an import that brings none.
	defaultDeadline = 30 * time.Second
)

// Config says where the sidecar is and what the rank attaches.
type Config struct {
	Dir string // run directory of the sidecar, and of whichever takes its place
	// Attach is what the rank states. OnDown, at rank 0, says what becomes of imports
	// without an end while no sidecar is there: see Send.
	Attach handoff.Attach
	// Files are the descriptors of Attach.Buffers in their order, of each as many as its
	// Descriptors says. They are the caller's, and stay open until Close.
	Files []int
	// The client attaches again after RedialMin, doubled for each try that fails and each
	// session that does not last, up to RedialMax. 0: 50 ms and 5 s.
	RedialMin, RedialMax time.Duration
}

// Check reports a configuration that cannot work.
func (c Config) Check() error {
	files := 0
	for _, d := range c.Attach.Buffers {
		files += d.Descriptors()
	}
	switch d := c.withDefaults(); {
	case len(c.Files) != files:
		return fmt.Errorf("%w: %d files for %d buffers: want %d: one of a file, none of GPU memory by handle, else one for each allocation",
			handoff.ErrAttach, len(c.Files), len(c.Attach.Buffers), files)
	case d.RedialMin < 0 || d.RedialMax < d.RedialMin:
		return fmt.Errorf("%w: redial %v to %v: want 0 < min <= max", handoff.ErrAttach, c.RedialMin, c.RedialMax)
	}
	if err := handoff.CheckCapacity(c.Attach); err != nil {
		return err
	}
	_, err := codec.EncodeFromEngine(c.Attach)
	return err
}

func (c Config) withDefaults() Config {
	if c.RedialMin == 0 {
		c.RedialMin = 50 * time.Millisecond
	}
	if c.RedialMax == 0 {
		c.RedialMax = max(5*time.Second, c.RedialMin)
	}
	return c
}

// Client is an engine rank's side of its sidecar. Safe for concurrent use.
type Client struct {
	cfg  Config
	wake chan struct{}
	life context.Context // ends with the client
	end  context.CancelFunc
	wg   sync.WaitGroup

	// Of the goroutine that attaches: of which sidecar the movers are that map the buffers.
	incarnation handoff.Incarnation
	movers      []*pidfd.Process

	mu      sync.Mutex // guards:
	rec     *record
	ready   []handoff.ToEngine
	telling telling
	ses     *session // takes messages; nil between two
	away    error    // why no session stands; nil while one does
	err     error    // why the client has ended
}

// Dial attaches: it sends Attach, the descriptors under the key of Attached, and
// BuffersReady, and returns when a mover maps the buffers. A refusal, a Failed without
// a label, or the end of the session is the error, with its sentinel. Ending ctx later
// changes nothing.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg.withDefaults(), wake: make(chan struct{}, 1), rec: newRecord(cfg.Attach, time.Now()), telling: newTelling(cfg.Attach)}
	c.life, c.end = context.WithCancel(context.Background())
	s, err := c.attach(ctx)
	if err != nil {
		c.end()
		c.wg.Wait()
		c.letGo()
		return nil, err
	}
	c.wg.Go(func() {
		defer c.letGo()
		c.run(s)
	})
	return c, nil
}

// run serves sessions, one after the other, until the client ends.
func (c *Client) run(s *session) {
	pause := c.cfg.RedialMin
	for s != nil {
		began := time.Now()
		why := s.serve(c)
		s.close()
		if time.Since(began) > stable {
			pause = c.cfg.RedialMin
		}
		if !c.leave(why) {
			return
		}
		s, pause = c.again(pause)
	}
}

// again attaches until it has or the client ends: then the session is nil.
func (c *Client) again(pause time.Duration) (*session, time.Duration) {
	for {
		c.rest(pause)
		pause = min(2*pause, c.cfg.RedialMax)
		if c.life.Err() != nil {
			return nil, pause
		}
		c.overdue()
		ctx, cancel := context.WithTimeout(c.life, attachLimit)
		s, err := c.attach(ctx)
		cancel()
		if err == nil {
			return s, pause
		}
		if !c.leave(err) {
			return nil, pause
		}
	}
}

// rest waits between two tries, and gives up imports that fall due meanwhile.
func (c *Client) rest(pause time.Duration) {
	until := time.NewTimer(pause)
	defer until.Stop()
	for {
		c.mu.Lock()
		at, ok := c.rec.due()
		c.mu.Unlock()
		next := time.Hour
		if ok {
			next = time.Until(at)
		}
		due := time.NewTimer(next)
		select {
		case <-until.C:
		case <-c.life.Done():
		case <-due.C:
			c.overdue()
			continue
		}
		due.Stop()
		return
	}
}

// overdue fails the imports whose deadline has passed with no sidecar to say how they end.
func (c *Client) overdue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.rec.giveUp(time.Now(), false) {
		c.failed(l, fmt.Errorf("%w: no sidecar came back before the deadline of %q: %w", handoff.ErrPeer, l, c.away), false)
	}
}

// failed tells the engine the end of an import. Caller holds mu.
func (c *Client) failed(label string, err error, safe bool) {
	c.ready = append(c.ready, handoff.Failed{Label: label, Err: err, SourceSafe: safe})
	c.ring()
}

// leave notes that no session stands and reports whether another one follows.
func (c *Client) leave(why error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ses, c.away = nil, why
	if c.err == nil && final(why) {
		c.err = why
	}
	c.ring()
	if c.err != nil {
		return false
	}
	if c.cfg.Attach.OnDown == handoff.OnDownRecompute {
		for _, l := range c.rec.giveUp(time.Time{}, true) {
			c.failed(l, fmt.Errorf("%w: the sidecar was lost while %q was imported: %w", handoff.ErrPeer, l, why), false)
		}
	}
	return true
}

// errUnpolled ends a client whose engine does not take what came.
var errUnpolled = fmt.Errorf("%w: the engine does not poll", handoff.ErrEngine)

// final reports whether attaching again cannot help: the sidecar says so, or that this
// engine breaks the protocol or runs another model than its group.
func final(err error) bool {
	if errors.Is(err, errUnpolled) {
		return true
	}
	return errs.Spoken(err) && (errors.Is(err, handoff.ErrRelaunch) || errors.Is(err, handoff.ErrEngine) || errors.Is(err, handoff.ErrModel))
}

// over says why nothing is sent any more. Caller holds mu.
func (c *Client) over() error {
	if c.err == nil || errors.Is(c.err, pump.ErrClosed) {
		return c.err
	}
	return fmt.Errorf("%w: %w", pump.ErrClosed, c.err)
}

func (c *Client) ring() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Send queues m and never blocks; m's slices may be reused. ErrBound refuses m alone, and
// so do ErrEngine, ErrWeights, ErrPosition and ErrUnknown for what the engine may not say:
// blocks and slots that its shards have not among it, and parts that do not fit together.
//
// While no sidecar is there, nothing is lost that matters: an Export is stated when the
// client attaches again, and freed in the group's order; Applied and Fenced are stated as
// they are by then; an Announce is said again, and the label has a new manifest, or ends with
// Failed where not every rank is back; an Import fails at once with ErrPeer and its source safe. An import
// that waits when the sidecar is lost ends by the word of the next one. Until then it
// waits, under OnDownFail until its deadline, or under OnDownRecompute it fails at once.
// Either way its memory is the group's: it comes back by ReleaseQuarantine, or the group
// admits it all the same, and the engine ends a request that nobody waits for.
//
// BlockEvents cost no message unless the sidecar asked for them: the client follows what the
// prefix cache holds, and tells the sidecar all of it when it asks, or is too slow for each change.
func (c *Client) Send(m handoff.FromEngine) error {
	if events, ok := m.(handoff.BlockEvents); ok {
		return c.changed(events)
	}
	p, err := codec.EncodeFromEngine(m)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.over(); err != nil {
		return err
	}
	told, err := c.rec.sends(m, time.Now())
	if err != nil || told {
		return err
	}
	if c.ses != nil && c.ses.out.Send(p) == nil {
		return nil
	}
	if im, ok := m.(handoff.Import); ok {
		l := importLabel(im)
		delete(c.rec.imports, l)
		c.failed(l, fmt.Errorf("%w: no sidecar is there to import %q", handoff.ErrPeer, l), true)
	}
	return nil
}

// Poll appends what is ready to dst, in order of arrival, all but decisions. It never
// blocks. MoverStarted is among it, for engines that show it: the client holds on to the
// mover itself.
func (c *Client) Poll(dst []handoff.ToEngine) []handoff.ToEngine {
	c.mu.Lock()
	defer c.mu.Unlock()
	dst = append(dst, c.ready...)
	clear(c.ready)
	c.ready = c.ready[:0]
	return dst
}

// Decisions takes the decisions that are held and not yet taken, in order, up to and
// with number through. Their slices are read only: the client states them again.
func (c *Client) Decisions(through uint64) []handoff.Decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec.take(through)
}

// Wake receives a value after something arrived, and after a session was lost or stands
// again.
func (c *Client) Wake() <-chan struct{} { return c.wake }

// Away is why no sidecar is attached, nil while one is. The client goes on trying until
// Err says otherwise.
func (c *Client) Away() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.away
}

// Err is why the client has ended, nil while it lives: its engine closed it or broke the
// protocol, or the sidecar says that the group must be launched anew. What arrived before
// stays for Poll and Decisions.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close sends what is queued, ends the session and waits for its goroutines. A sidecar
// that does not read is given a second.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.err == nil {
		c.err = pump.ErrClosed
	}
	if c.ses != nil && c.away == nil {
		c.ses.out.Close(nil)
	} else {
		c.end()
	}
	c.mu.Unlock()
	grace := time.AfterFunc(closeGrace, c.end)
	c.wg.Wait()
	grace.Stop()
	c.end()
	return nil
}
