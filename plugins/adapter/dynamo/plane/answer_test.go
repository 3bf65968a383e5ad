package plane

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// stuck is a connection whose caller reads no more after some bytes.
type stuck struct {
	net.Conn
	room, wrote int
}

var errStuck = errors.New("stuck")

func (s *stuck) SetReadDeadline(time.Time) error { return nil }

func (s *stuck) SetWriteDeadline(time.Time) error { return nil }

func (s *stuck) Write(b []byte) (int, error) {
	n := min(len(b), s.room)
	if s.room -= n; n == len(b) {
		s.wrote += n
		return n, nil
	}
	s.wrote, s.room = s.wrote+n, 1<<20 // there is room again for what comes next
	return n, errStuck
}

// TestNothingFollowsHalfAnItem: a client would take it for the item's rest.
func TestNothingFollowsHalfAnItem(t *testing.T) {
	c := &stuck{room: 40}
	out := &Stream{conn: c, codec: wire.Msgpack}
	if err := out.Send(reply{Text: strings.Repeat("x", 100)}); !errors.Is(err, errStuck) {
		t.Fatal(err)
	}
	if err := out.finish(errStuck); !errors.Is(err, errStuck) || c.wrote != 40 {
		t.Errorf("%d bytes left, %v", c.wrote, err)
	}
}

// TestFaultsAreShort: every text of an error is bounded and can be read, and the error that
// a handler returned stays as it is.
func TestFaultsAreShort(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", 1<<20), "x" + strings.Repeat("ü", maxFault), "x\xff"} {
		f := wire.NewFault(wire.Conflict, text)
		got := shown(*f)
		for _, s := range []string{got.Message, got.Diagnostic, got.Public.Message} {
			if len(s) > maxFault || !utf8.ValidString(s) || s[0] != 'x' {
				t.Errorf("%d bytes of %d, %.8q", len(s), len(text), s)
			}
		}
		if f.Message != text || f.Public.Message != text {
			t.Error("the handler's own fault has changed")
		}
	}
}

// TestCallersSayWords: of what a caller sends while it is answered no more is read than a word has.
func TestCallersSayWords(t *testing.T) {
	caller, conn := net.Pipe()
	heard := make(chan error, 1)
	go func() {
		heard <- listen(conn, func(error) {})
		conn.Close()
	}()
	n, err := caller.Write(wire.AppendTwoPart(nil, wire.TwoPart{Header: []byte("more"), Body: make([]byte, 1<<20)}))
	if err == nil || n > 2*maxWord {
		t.Errorf("%d bytes were read, %v", n, err)
	}
	if err := <-heard; !errors.Is(err, ErrKilled) {
		t.Error(err)
	}
}
