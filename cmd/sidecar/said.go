package sidecar

import (
	"bytes"
	"log/slog"
	"sync"
)

// said has what a child writes to stderr, libraries of others among it, in the log, a line
// each.
type said struct {
	log *slog.Logger

	mu   sync.Mutex
	rest []byte // a line's beginning
}

// maxSaid bounds a line, in bytes.
const maxSaid = 4 << 10

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest = append(s.rest, b...)
	for {
		line, rest, whole := bytes.Cut(s.rest, []byte("\n"))
		if !whole && len(line) < maxSaid {
			return len(b), nil
		}
		if !whole {
			line, rest = line[:maxSaid], line[maxSaid:]
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			s.log.Error("wire mover says", "text", string(line))
		}
		s.rest = append(s.rest[:0], rest...)
	}
}
