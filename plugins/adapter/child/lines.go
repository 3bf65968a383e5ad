package child

import (
	"bytes"
	"log/slog"
	"sync"
	"time"
)

// Bounds of what a child's standard error brings into the log.
const (
	maxLine  = 4 << 10 // bytes; the rest of a line is dropped
	maxLines = 50      // in a window
	window   = time.Second
)

// lines logs what is written to it, line by line. It never fails and never waits for
// more than the log.
type lines struct {
	log *slog.Logger
	now func() time.Time

	mu    sync.Mutex // guards:
	line  []byte     // without its end
	since time.Time  // when the window began
	count int        // lines in it
	left  int        // lines that were left out
}

func newLines(log *slog.Logger) *lines { return &lines{log: log, now: time.Now} }

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := b; len(rest) > 0; {
		part, after, whole := bytes.Cut(rest, []byte("\n"))
		l.line = append(l.line, part[:min(len(part), maxLine-len(l.line))]...)
		if rest = after; whole {
			l.end()
		}
	}
	return len(b), nil
}

// end logs the line, if the window has room.
func (l *lines) end() {
	text := string(l.line)
	l.line = l.line[:0]
	if now := l.now(); now.Sub(l.since) >= window {
		if l.left > 0 {
			l.log.Warn("adapter says too much", "lines-left-out", l.left)
		}
		l.since, l.count, l.left = now, 0, 0
	}
	if l.count == maxLines {
		l.left++
		return
	}
	if l.count++; text != "" {
		l.log.Info("adapter says", "line", text)
	}
}
