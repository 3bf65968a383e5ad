package lifeline

import (
	"io"
	"os"
	"strings"
	"sync"
)

const (
	tailBytes = 8 << 10
	tailLines = 20
)

// tail keeps the end of a child's stderr and passes everything on.
type tail struct {
	to   io.Writer // may be nil
	done chan struct{}

	mu  sync.Mutex
	buf []byte // at most 2*tailBytes
}

func newTail(to io.Writer) *tail { return &tail{to: to, done: make(chan struct{})} }

// drain ends when the last process that holds the child's stderr has closed it. It
// goes on after the child's own exit, so that a grandchild is not killed by SIGPIPE.
func (t *tail) drain(r *os.File) {
	defer close(t.done)
	defer r.Close()
	_, _ = io.Copy(t, r)
}

// Write never fails: a broken destination must not end the draining.
func (t *tail) Write(b []byte) (int, error) {
	if t.to != nil {
		_, _ = t.to.Write(b)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if n := len(t.buf); n > 2*tailBytes {
		t.buf = append(t.buf[:0], t.buf[n-tailBytes:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := string(t.buf[max(0, len(t.buf)-tailBytes):])
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
