package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// meter counts calls under the names and labels of Dynamo's own workers, so that its boards
// and planners find them.
type meter struct {
	registry                    *prometheus.Registry
	began                       time.Time
	calls, bytes, stopped       prometheus.Counter
	running                     prometheus.Gauge
	took                        prometheus.Histogram
	faults                      *prometheus.CounterVec // by error_type
	released, unreleased, asked prometheus.Counter

	log   *slog.Logger
	lines ration // of calls that ended with an error
}

func newMeter(at directory.Endpoint, id uint64, log *slog.Logger) *meter {
	m := &meter{registry: prometheus.NewRegistry(), began: time.Now(), log: log}
	own := prometheus.Labels{"dynamo_namespace": at.Namespace, "dynamo_component": at.Component, "dynamo_endpoint": at.Name, "worker_id": strconv.FormatUint(id, 16)}
	named := prometheus.WrapRegistererWith(own, m.registry)
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "dynamo", Subsystem: "component", Name: name, Help: help}
	}
	counter := func(o prometheus.Opts) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts(o))
		named.MustRegister(c)
		return c
	}
	m.calls = counter(opts("requests_total", "Calls that ended."))
	m.bytes = counter(opts("request_bytes_total", "Bytes of requests."))
	m.stopped = counter(opts("cancellation_total", "Calls whose caller stopped or went away."))
	m.running = prometheus.NewGauge(prometheus.GaugeOpts(opts("inflight_requests", "Calls that run.")))
	m.took = prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "dynamo", Subsystem: "component", Name: "request_duration_seconds",
		Help: "Duration of a call.", Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600}})
	m.faults = prometheus.NewCounterVec(prometheus.CounterOpts(opts("errors_total", "Calls that ended with an error.")), []string{"error_type"})
	named.MustRegister(m.running, m.took, m.faults, prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("uptime_seconds", "Since the start.")),
		func() float64 { return time.Since(m.began).Seconds() }))
	baton := func(name, help string) prometheus.Counter {
		return counter(prometheus.Opts{Namespace: "baton", Subsystem: "dynamo_worker", Name: name, Help: help})
	}
	m.asked = baton("handoffs_total", "Hand-offs that this worker made or was given.")
	m.released = baton("releases_total", "Hand-offs that nobody imports and that were released.")
	m.unreleased = baton("releases_failed_total", "Hand-offs that nobody imports and that their lease has to end.")
	return m
}

// count is serve, counted; its error is as the caller gets it.
func (m *meter) count(serve plane.Handler) plane.Handler {
	return func(ctx context.Context, c plane.Call, out *plane.Stream) error {
		from := time.Now()
		m.running.Inc()
		m.bytes.Add(float64(len(c.Body)))
		err := dynamo.Fault(serve(ctx, c, out))
		m.running.Dec()
		m.calls.Inc()
		m.took.Observe(time.Since(from).Seconds())
		if why := context.Cause(ctx); errors.Is(why, plane.ErrStopped) || errors.Is(why, plane.ErrKilled) {
			m.stopped.Inc()
		} else if f, ok := errors.AsType[*wire.Fault](err); ok {
			m.faults.WithLabelValues(f.Kind()).Inc()
			m.say(c, f)
		}
		return err
	}
}

// say writes what a caller was told, for the operator of the worker.
func (m *meter) say(c plane.Call, f *wire.Fault) {
	ok, left := m.lines.take(time.Now())
	if !ok {
		return
	}
	log := m.log
	if left > 0 {
		log = log.With("unsaid_before", left)
	}
	log.Info("a call ended with an error", "call", fmt.Sprintf("%.64s", c.ID), "kind", f.Kind(), "err", f.Message)
}

// Callers make lines as fast as they like: a window has so many, and the next says how many
// it left out.
const (
	window = 10 * time.Second
	lines  = 10
)

// ration bounds lines of a log.
type ration struct {
	mu   sync.Mutex // guards:
	from time.Time  // of the window
	said int        // in it
	left int        // that were not said since one was
}

// take asks for a line at an instant; left were not said before it.
func (r *ration) take(now time.Time) (ok bool, left int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.from) >= window {
		r.from, r.said = now, 0
	}
	if r.said == lines {
		r.left++
		return false, 0
	}
	r.said++
	left, r.left = r.left, 0
	return true, left
}
