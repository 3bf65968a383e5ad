package serve

import (
	"io"
	"log/slog"
	"strings"
)

// NewLog writes lines that a go-plugin host takes apart: one JSON object each with
// hclog's names for time, level and message.
func NewLog(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) > 0 {
			return a
		}
		switch a.Key {
		case slog.TimeKey:
			return slog.String("@timestamp", a.Value.Time().Format("2006-01-02T15:04:05.000000Z07:00"))
		case slog.LevelKey:
			return slog.String("@level", strings.ToLower(a.Value.String()))
		case slog.MessageKey:
			return slog.String("@message", a.Value.String())
		}
		return a
	}})).With("@module", "baton")
}
