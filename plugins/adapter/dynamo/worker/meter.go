package worker

import (
	"context"
	"errors"
	"strconv"
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
}

func newMeter(at directory.Endpoint, id uint64) *meter {
	m := &meter{registry: prometheus.NewRegistry(), began: time.Now()}
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
		}
		return err
	}
}
