package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ErrListen says that the metrics address cannot be listened on.
var ErrListen = errors.New("metrics: cannot listen")

// Bounds of one scrape.
const (
	headerWithin = 5 * time.Second
	answerWithin = 30 * time.Second
	closeWithin  = time.Second
	maxHeader    = 16 << 10
)

// Server answers /metrics and /healthz.
type Server struct {
	addr net.Addr
	done chan struct{}
	err  error
}

// Serve listens on addr (port 0 takes a free one) until ctx ends. healthy says what
// is wrong, nil when nothing is; a nil healthy is always well.
func (m *Metrics) Serve(ctx context.Context, addr string, healthy func() error) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: metrics %q: %w: choose another address, or port 0", ErrListen, addr, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if healthy != nil {
			if err := healthy(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				m.tellAdapters(w)
				return
			}
		}
		_, _ = io.WriteString(w, "ok\n")
		m.tellAdapters(w)
	})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerWithin, ReadTimeout: headerWithin,
		WriteTimeout: answerWithin, MaxHeaderBytes: maxHeader,
	}
	s := &Server{addr: l.Addr(), done: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	go func() {
		defer close(s.done)
		select {
		case s.err = <-served:
			return
		case <-ctx.Done():
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		if server.Shutdown(last) != nil {
			s.err = server.Close()
		}
		<-served
	}()
	return s, nil
}

// Addr is the host:port that was bound.
func (s *Server) Addr() string { return s.addr.String() }

// Wait returns when the listener is closed and its goroutines have ended, with the
// error that ended it before its context did.
func (s *Server) Wait() error {
	<-s.done
	return s.err
}
