package config

import (
	"fmt"
	"io"
	"log/slog"
)

// Levels and formats that NewLogger takes.
var (
	logLevels  = []string{"debug", "info", "warn", "error"}
	logFormats = []string{"text", "json"}
)

// NewLogger writes to w at a level of debug, info, warn, error and in a format of
// text or json. The error is ErrConfig and names the field.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	switch level {
	case "debug":
		l = slog.LevelDebug
	case "info":
		l = slog.LevelInfo
	case "warn":
		l = slog.LevelWarn
	case "error":
		l = slog.LevelError
	default:
		return nil, fmt.Errorf("%w: log-level %q: %s", ErrConfig, level, want(level, logLevels))
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("%w: log-format %q: %s", ErrConfig, format, want(format, logFormats))
}
