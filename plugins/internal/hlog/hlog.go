// Package hlog gives go-plugin, which logs by hclog, a logger that ends in slog.
package hlog

import (
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// New is log for go-plugin. Its levels begin at trace, which is debug here.
func New(log *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: hclog.Trace})
	l.RegisterSink(sink{log})
	return l
}

type sink struct{ log *slog.Logger }

// Accept implements hclog.SinkAdapter.
func (s sink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	to := s.log.Debug
	switch level {
	case hclog.Info:
		to = s.log.Info
	case hclog.Warn:
		to = s.log.Warn
	case hclog.Error:
		to = s.log.Error
	}
	to(msg, args...)
}
