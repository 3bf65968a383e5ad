package metrics

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Adapter is what a sidecar shows of one adapter's session.
type Adapter struct {
	Stage     string
	Restarts  uint64 // lives that ended unasked
	Coalesced uint64 // updates that told the whole state because it fell behind
	Lost      uint64 // notices that were in none
	Err       error  // why the last life ended; nil when another one went on
}

// adapter is one that /healthz tells of.
type adapter struct {
	name string
	now  func() Adapter
}

// Adapter shows an adapter in /metrics and /healthz; once for each name, before Serve. stages
// are all that there are. own gives what it counts itself, by name; one that ends in _total only
// grows in a life. An adapter that fails makes no sidecar unhealthy: transfers go on without it.
func (m *Metrics) Adapter(name string, stages []string, now func() Adapter, own func() map[string]float64) {
	m.adapters = append(m.adapters, adapter{name, now})
	label := prometheus.Labels{"adapter": name}
	prometheus.WrapRegistererWith(label, m.labelled).MustRegister(counts{own})
	for _, stage := range stages {
		m.show(prometheus.GaugeOpts{Name: "adapter_stage", Help: "1 for the stage that the adapter's session is in, else 0.",
			ConstLabels: prometheus.Labels{"adapter": name, "stage": stage}}, func() float64 {
			if now().Stage == stage {
				return 1
			}
			return 0
		})
	}
	for _, c := range []struct {
		name, help string
		count      func(Adapter) uint64
	}{
		{"adapter_restarts_total", "Lives of an adapter that ended unasked.", func(a Adapter) uint64 { return a.Restarts }},
		{"adapter_coalesced_total", "Updates that told an adapter the whole state because it fell behind.", func(a Adapter) uint64 { return a.Coalesced }},
		{"adapter_lost_notices_total", "Notices that an adapter was not told, but the whole state instead.", func(a Adapter) uint64 { return a.Lost }},
	} {
		m.labelled.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "baton", Name: c.name, Help: c.help, ConstLabels: label},
			func() float64 { return float64(c.count(now())) }))
	}
}

// ownCounts are the names that Adapter shows itself.
var ownCounts = []string{"stage", "restarts_total", "coalesced_total", "lost_notices_total"}

// counts collects what an adapter counts itself. All have one help: two adapters may have one
// name for what they count.
type counts struct{ own func() map[string]float64 }

// Describe implements prometheus.Collector: it says nothing, as names are known only when
// they come.
func (c counts) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c counts) Collect(to chan<- prometheus.Metric) {
	for name, value := range c.own() {
		if slices.Contains(ownCounts, name) {
			continue
		}
		kind := prometheus.GaugeValue
		if strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		m, err := prometheus.NewConstMetric(prometheus.NewDesc("baton_adapter_"+name, "What an adapter counts itself.", nil, nil), kind, value)
		if err == nil { // else the name is none
			to <- m
		}
	}
}

// tellAdapters writes a line for each adapter.
func (m *Metrics) tellAdapters(w io.Writer) {
	for _, a := range m.adapters {
		now := a.now()
		why := ""
		if now.Err != nil {
			why = ": " + now.Err.Error()
		}
		_, _ = fmt.Fprintf(w, "adapter %s: %s, %d restarts%s\n", a.name, now.Stage, now.Restarts, why)
	}
}
