// Package pump writes one-way messages to an open gRPC stream from a bounded queue,
// so that whoever sends never waits for the network.
//
// A Pump has one writer: the goroutine that calls Run. Closing it flushes what is
// queued; a full queue closes it at once with ErrFull, since a reader that far behind
// would act on old news. The cause of the first close stays.
package pump

import (
	"errors"
	"fmt"
	"sync"
)

var (
	// ErrFull ends a session whose other side does not read.
	ErrFull = errors.New("session: send queue full")
	// ErrClosed is what Send says after the end.
	ErrClosed = errors.New("session: closed")
)

// Pump is a queue of messages for one stream. Make it with New.
type Pump[M any] struct {
	queue  chan M
	ended  chan struct{}
	broken chan struct{}
	ran    chan struct{}

	mu    sync.Mutex // guards:
	over  bool
	broke bool
	cause error
}

// New makes a pump that holds at most bound messages.
func New[M any](bound int) *Pump[M] {
	return &Pump[M]{queue: make(chan M, bound), ended: make(chan struct{}), broken: make(chan struct{}), ran: make(chan struct{})}
}

// Send queues m and never blocks. After the end it is ErrClosed, with the cause if
// there is one. A full queue ends the pump.
func (p *Pump[M]) Send(m M) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		if p.cause != nil {
			return fmt.Errorf("%w: %w", ErrClosed, p.cause)
		}
		return ErrClosed
	}
	select {
	case p.queue <- m:
		return nil
	default:
	}
	err := fmt.Errorf("%w: %d messages wait: the other side does not read", ErrFull, cap(p.queue))
	p.end(err)
	p.cut()
	return err
}

// Close ends the pump: what is queued is still written. nil is an ordinary end. The
// first close counts.
func (p *Pump[M]) Close(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(cause)
}

// Break ends the pump and drops what is queued, also while a Close flushes.
func (p *Pump[M]) Break(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(cause)
	p.cut()
}

func (p *Pump[M]) end(cause error) {
	if p.over {
		return
	}
	p.over, p.cause = true, cause
	close(p.ended)
}

func (p *Pump[M]) cut() {
	if p.broke {
		return
	}
	p.broke = true
	close(p.broken)
}

// Ended is closed at the first Close, Break or overflow.
func (p *Pump[M]) Ended() <-chan struct{} { return p.ended }

// Broken is closed at the first Break or overflow. A writer may hang in a write to an
// other side that does not read: the owner of the stream cuts it then.
func (p *Pump[M]) Broken() <-chan struct{} { return p.broken }

// Cause is why it ended; nil before, and for an ordinary end.
func (p *Pump[M]) Cause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cause
}

// Run writes until the end, by one call of write per message, and returns the cause.
// An error of write ends the pump. It is called once.
func (p *Pump[M]) Run(write func(M) error) error {
	defer close(p.ran)
	for {
		select {
		case <-p.ended:
			return p.drain(write)
		default:
		}
		select {
		case <-p.ended:
			return p.drain(write)
		case m := <-p.queue:
			if err := write(m); err != nil {
				p.Break(err)
				return p.Cause()
			}
		}
	}
}

func (p *Pump[M]) drain(write func(M) error) error {
	for {
		select {
		case <-p.broken:
			return p.Cause()
		default:
		}
		select {
		case m := <-p.queue:
			if err := write(m); err != nil {
				p.Break(err)
			}
		default:
			return p.Cause()
		}
	}
}

// Wait waits until Run has returned or the pump is broken, and returns the cause. The
// server's side of a stream is cut by returning from its call, so that goroutine waits
// here while another one runs Run.
func (p *Pump[M]) Wait() error {
	select {
	case <-p.ran:
	case <-p.broken:
	}
	return p.Cause()
}
