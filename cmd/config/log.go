package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
)

// Levels and formats that NewLogger takes.
var (
	logLevels  = []string{"debug", "info", "warn", "error"}
	logFormats = []string{"text", "json"}
)

// NewLogger writes to w at a level of debug, info, warn, error and in a format of
// text or json. The error is ErrConfig and names the field.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	if err := checkLog(level, format); err != nil {
		return nil, err
	}
	l, err := ParseLevel(level)
	if err != nil {
		return nil, err
	}
	opts := &slog.HandlerOptions{Level: l}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return slog.New(slog.NewTextHandler(w, opts)), nil
}

// ParseLevel reads a level; the error is ErrConfig.
func ParseLevel(level string) (l slog.Level, err error) {
	if err = checkLog(level, logFormats[0]); err == nil {
		err = l.UnmarshalText([]byte(level))
	}
	return l, err
}

func checkLog(level, format string) error {
	var errs []error
	if !slices.Contains(logLevels, level) {
		errs = append(errs, fmt.Errorf("%w: log-level: %q: %s", ErrConfig, level, want(level, logLevels)))
	}
	if !slices.Contains(logFormats, format) {
		errs = append(errs, fmt.Errorf("%w: log-format: %q: %s", ErrConfig, format, want(format, logFormats)))
	}
	return errors.Join(errs...)
}
