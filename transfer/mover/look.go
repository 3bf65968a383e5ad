package mover

import (
	"errors"
	"fmt"
	"time"
)

// Answers are read by one goroutine that sleeps until there are some, and, around pulls of
// GPU memory, by one that looks for them: whoever comes first takes them.

// answered is an answer and who waits for it.
type answered struct {
	answer
	k settler
	c *call
}

func (x *answered) tell() {
	switch {
	case x.k != nil:
		x.k.settle(x.bytes, x.err)
	case x.c != nil:
		x.c.answer <- x.answer
	}
}

// read handles answers until the stream ends.
func (l *life) read() error {
	for {
		x, err := l.next()
		switch {
		case errors.Is(err, errNothing):
			err = l.sleep()
		case err == nil:
			x.tell()
		}
		if err != nil {
			return err
		}
	}
}

// sleep ends when there may be something to read.
func (l *life) sleep() error {
	return l.raw.Read(func(fd uintptr) bool { return until(fd, 0, nil) })
}

// next takes an answer that is there, or says errNothing.
func (l *life) next() (x answered, err error) {
	l.rmu.Lock()
	defer l.rmu.Unlock()
	if l.broken != nil {
		return x, l.broken
	}
	f, err := l.reader.next()
	if errors.Is(err, errNothing) {
		return x, err
	}
	if err == nil {
		closeFDs(f.fds) // a mover sends none
		if f.kind != kindAnswer {
			err = fmt.Errorf("%w: kind %d from the mover", errWire, f.kind)
		} else {
			x.answer, err = decodeAnswer(f.body)
		}
	}
	if err != nil {
		l.broken = err
		return x, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	x.k, x.c = l.tickets[f.id], l.calls[f.id]
	delete(l.tickets, f.id)
	delete(l.calls, f.id)
	if x.c != nil && x.c.undo != nil && x.err == nil {
		l.push(*x.c.undo)
	}
	return x, nil
}

// silence ends all reading.
func (l *life) silence(err error) {
	l.rmu.Lock()
	defer l.rmu.Unlock()
	if l.broken == nil {
		l.broken = err
	}
	l.reader.close()
}

// look handles answers for at most d, or until done is closed. Caller holds mu and has seen
// that the child is not dead.
func (l *life) look(done <-chan struct{}, d time.Duration) {
	l.lookers.Go(func() {
		if !l.looking.TryLock() {
			return
		}
		defer l.looking.Unlock()
		for end := time.Now().Add(d); ; {
			some := false
			err := l.raw.Control(func(fd uintptr) { some = until(fd, time.Until(end), done) })
			if err != nil || !some {
				return
			}
			for err == nil { // also what came with its own: who sleeps sees the socket alone
				var a answered
				if a, err = l.next(); err == nil {
					a.tell()
				}
			}
			if !errors.Is(err, errNothing) {
				_ = l.conn.CloseRead() // wakes read, which says so
				return
			}
		}
	})
}
