package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// tape is a sink that keeps what it is given.
type tape struct {
	said chan struct{} // holds a token after each message

	mu     sync.Mutex // guards:
	away   bool
	events []CacheEvent
	closed bool
}

func (s *tape) Send(_ context.Context, _, sequence uint64, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errors.New("away")
	}
	e, err := wire.DecodeEvent(b)
	events, err2 := DecodeBatch(e.Payload)
	if err = errors.Join(err, err2); err != nil || e.Sequence != sequence {
		panic(fmt.Sprint(e, err))
	}
	for _, r := range events {
		s.events = append(s.events, r.Event)
	}
	select {
	case s.said <- struct{}{}:
	default:
	}
	return nil
}

func (s *tape) Lost() uint64 { return 3 }

func (s *tape) Channel(publisher uint64) directory.Channel {
	return directory.NewChannel(state, Topic, publisher)
}

func (s *tape) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// set says whether it is away.
func (s *tape) set(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// ids are the numbers of the events so far.
func (s *tape) ids() (ids []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		ids = append(ids, e.ID)
	}
	return ids
}

// TestSourceTellsTwice: the newest event is told once more after a quiet while, once; what
// cannot be sent is sent later, in order.
func TestSourceTellsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, out := NewLog(), &tape{}
		l.Tell(chain(0, 1)) // before it
		s := NewSource(directory.Worker{ID: 5}, 9, l, out, false, quietLog)
		is := func(want ...uint64) {
			t.Helper()
			synctest.Wait()
			if got := out.ids(); !slices.Equal(got, want) {
				t.Fatalf("told %v, want %v", got, want)
			}
		}
		time.Sleep(3 * quiet)
		is()
		l.Tell(chain(1, 2))
		is(2)
		time.Sleep(quiet + time.Millisecond)
		is(2, 2)
		time.Sleep(time.Hour)
		is(2, 2)
		out.set(true)
		l.Tell(chain(2, 3))
		l.Tell(chain(3, 4))
		time.Sleep(10 * tryAgain)
		is(2, 2)
		out.set(false)
		time.Sleep(tryAgain + time.Millisecond)
		is(2, 2, 3, 4)
		out.set(true)
		time.Sleep(3 * quiet)
		out.set(false)
		time.Sleep(3 * quiet)
		is(2, 2, 3, 4, 4)
		for range 2 * keptEvents { // more than is kept: it goes on with what is
			out.set(true)
			l.Tell(removed(104))
			l.Tell(chain(3, 4))
		}
		synctest.Wait() // what it took before the last of them has failed too
		out.set(false)
		time.Sleep(tryAgain + time.Millisecond)
		synctest.Wait()
		if got := out.ids()[5:]; len(got) != keptEvents || got[len(got)-1] != l.Last() {
			t.Errorf("%d events up to %d, newest %d", len(got), got[len(got)-1], l.Last())
		}
		s.Close()
		if !out.closed {
			t.Error("its sink is open")
		}
	})
}

// TestLiveSourceFallsBehind: routers that cannot ask, and whose source could not send what is
// forgotten by then, are told everything anew, once.
func TestLiveSourceFallsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, out := NewLog(), &tape{}
		s := NewSource(directory.Worker{ID: 5}, 9, l, out, true, quietLog)
		defer s.Close()
		l.Tell(chain(0, 3))
		synctest.Wait()
		out.set(true)
		for range keptEvents {
			l.Tell(removed(103))
			l.Tell(chain(2, 3))
		}
		synctest.Wait()
		out.set(false)
		time.Sleep(time.Minute)
		last := l.Last()
		var again []CacheEvent
		for n, e := range out.events {
			if e.Data == (Data{}) {
				again = append(again, out.events[n:]...)
			}
		}
		if len(again) != 3 || again[0].ID != last-1 || len(again[1].Data.Stored.Blocks) != 3 || again[2].ID != last { // the newest twice
			t.Errorf("%+v, newest %d", again, last)
		}
	})
}
