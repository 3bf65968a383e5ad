package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ErrListen: the address of /health and /metrics cannot be listened on.
var ErrListen = errors.New("dynamo worker: cannot listen")

// Bounds of a request for the status.
const (
	headerWithin = 5 * time.Second
	answerWithin = time.Minute // a tokenizer has megabytes
	maxHeader    = 16 << 10
)

// status is the HTTP face that Dynamo's own workers have too: /health, /live, /metrics, and
// the model's files for frontends of other hosts.
type status struct {
	server *http.Server
	port   uint16
	served chan struct{}
}

// serveStatus listens at Config.System.
func (w *Worker) serveStatus() error {
	l, err := net.Listen("tcp", w.cfg.System)
	if err != nil {
		return fmt.Errorf("%w: %w: choose another address, or port 0", ErrListen, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /live", func(out http.ResponseWriter, _ *http.Request) { w.tell(out, true) })
	mux.HandleFunc("GET /health", func(out http.ResponseWriter, _ *http.Request) { w.tell(out, w.healthy()) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(w.meter.registry, promhttp.HandlerOpts{}))
	if a := w.cfg.Assets; a != nil {
		mux.HandleFunc("GET "+w.files()+"{name}", func(out http.ResponseWriter, r *http.Request) {
			name := r.PathValue("name")
			b, ok := a.files[name]
			if !ok {
				http.NotFound(out, r)
				return
			}
			http.ServeContent(out, r, path.Base(name), time.Time{}, bytes.NewReader(b))
		})
	}
	s := &status{served: make(chan struct{}), port: uint16(l.Addr().(*net.TCPAddr).Port)}
	s.server = &http.Server{Handler: mux, ReadHeaderTimeout: headerWithin, ReadTimeout: headerWithin, WriteTimeout: answerWithin, MaxHeaderBytes: maxHeader}
	go func() {
		defer close(s.served)
		if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			w.cfg.Log.Warn("the worker's status is not served", "err", err)
		}
	}()
	w.status = s
	w.cfg.Log.Info("serves /health, /live and /metrics", "addr", l.Addr().String())
	return nil
}

// close ends it, and what it serves.
func (s *status) close() error {
	if s == nil {
		return nil
	}
	err := s.server.Close()
	<-s.served
	return err
}

// files is the path under which the model's files are.
func (w *Worker) files() string {
	return "/v1/metadata/" + strings.ReplaceAll(w.endpoint().String(), ".", "/") + "/" + slug(w.cfg.Model) + "/_base/"
}

// healthy is whether calls find the worker, and its engine.
func (w *Worker) healthy() bool {
	return w.offered.Load() && w.keeper.InPlace() == nil
}

// tell answers in the form of Dynamo's own workers. Whoever asks whether the process lives is
// told yes while the engine is away too: a restart of the worker brings no engine back.
func (w *Worker) tell(out http.ResponseWriter, well bool) {
	word := map[bool]string{true: "ready", false: "notready"}
	up := time.Since(w.meter.began)
	b, err := json.Marshal(struct {
		Status    string            `json:"status"`
		Up        map[string]int64  `json:"uptime"`
		Endpoints map[string]string `json:"endpoints"`
	}{word[well], map[string]int64{"secs": int64(up / time.Second), "nanos": int64(up % time.Second)}, map[string]string{"generate": word[w.healthy()]}})
	if err != nil {
		http.Error(out, err.Error(), http.StatusInternalServerError)
		return
	}
	out.Header().Set("Content-Type", "application/json")
	if !well {
		out.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = out.Write(b) // who asked may have gone
}
