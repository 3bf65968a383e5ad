package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Link is how this rank reads from a rank of another group. Rates are in bytes a second.
type Link struct {
	Peer      string // "group/rank"
	Transport string // empty: none
	Way       string // how its bytes travel
	Code      string // why it was chosen
	Fallback  bool   // something better was passed over
	Verdict   string // unmeasured, good, degraded, broken
	Rate      float64
	Expected  float64 // 0: nothing is known to compare with
	Latency   time.Duration
}

// links collects what is known of links at each scrape.
type links struct {
	now                                     func() []Link
	info, fallback, rate, expected, latency *prometheus.Desc
}

// Links shows the links of this rank; at most once.
func (m *Metrics) Links(now func() []Link) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("baton_link_"+name, help, append([]string{"peer", "transport"}, labels...), nil)
	}
	m.labelled.MustRegister(&links{now,
		desc("info", "1: by which transport, and why, this rank reads from a peer, and what that is worth.", "way", "code", "verdict"),
		desc("fallback", "1 if a better transport was passed over for this one, else 0."),
		desc("bytes_per_second", "Rate of the newest probe of a link."),
		desc("expected_bytes_per_second", "What a link of its kind should bring here."),
		desc("latency_seconds", "Duration of one small read, by the newest probe of a link.")})
}

// Describe implements prometheus.Collector.
func (l *links) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{l.info, l.fallback, l.rate, l.expected, l.latency} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (l *links) Collect(to chan<- prometheus.Metric) {
	for _, k := range l.now() {
		show := func(d *prometheus.Desc, v float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{k.Peer, k.Transport}, labels...)...)
		}
		show(l.info, 1, k.Way, k.Code, k.Verdict)
		fell := 0.0
		if k.Fallback {
			fell = 1
		}
		show(l.fallback, fell)
		if k.Rate > 0 {
			show(l.rate, k.Rate)
			show(l.latency, k.Latency.Seconds())
		}
		if k.Expected > 0 {
			show(l.expected, k.Expected)
		}
	}
}
