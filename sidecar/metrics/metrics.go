// Package metrics counts what a sidecar does and serves it to Prometheus. It has a
// registry of its own and no globals; nothing inside Baton reads a metric.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Outcome is how a hand-off ended.
type Outcome string

const (
	Admitted Outcome = "admitted" // the request went on in the destination
	Aborted  Outcome = "aborted"  // somebody asked for its end
	Failed   Outcome = "failed"   // a pull, a check or an engine failed
	Expired  Outcome = "expired"  // the source's lease ended first
)

// Phase is a part of a hand-off whose duration is measured, at the destination.
type Phase string

const (
	Open    Phase = "open"    // Import to Opened
	Reserve Phase = "reserve" // Opened to the last Reserved, waiting for room included
	Move    Phase = "move"    // slowest rank, first Pull to the last ticket done
	Check   Phase = "check"   // last Reserved to the last Landed, less Move
	Done    Phase = "done"    // Done asked to Done answered
	Admit   Phase = "admit"   // Admit decided to applied on every rank
	Sum     Phase = "sum"     // adding up one rank's export, or what it read: at either end, within Export or check
)

// Reason is why a message was dropped.
type Reason string

const (
	Stale     Reason = "stale"     // of an old incarnation, roster or attempt
	Unmatched Reason = "unmatched" // answers no open question
	Malformed Reason = "malformed" // contradicts itself or the group
	Full      Reason = "full"      // a queue was at its bound
	Forbidden Reason = "forbidden" // without the key, in another's name, or from a peer that is not who it says
)

// Queue names a bounded queue.
type Queue string

const (
	Imports   Queue = "imports"    // that wait, run, or failed and whose memory is not quiet yet; of rank 0
	LoopInbox Queue = "loop_inbox" // events that the loop has not stepped
)

// SessionKind is the other end of a session.
type SessionKind string

const (
	EngineSession SessionKind = "engine"
	PeerSession   SessionKind = "peer"
)

// Metrics is one sidecar's. Its methods are safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	labelled prometheus.Registerer // with the names of the sidecar

	handoffs *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	phases   *prometheus.HistogramVec
	dropped  *prometheus.CounterVec
	sessions *prometheus.GaugeVec
	restarts prometheus.Counter
	lost     prometheus.Counter
	compared *prometheus.CounterVec
	adapters []adapter
}

// New makes metrics that carry the names of the sidecar as labels.
func New(cluster, pool, group, rank string) *Metrics {
	registry := prometheus.NewRegistry()
	names := prometheus.Labels{"cluster": cluster, "pool": pool, "group": group, "rank": rank}
	labelled := prometheus.WrapRegistererWith(names, registry)
	m := &Metrics{
		registry: registry, labelled: labelled,
		handoffs: counter("handoffs_total", "Hand-offs that ended, by outcome.", "outcome"),
		bytes:    counter("moved_bytes_total", "Bytes moved into this rank's engine, by transport backend.", "backend"),
		dropped:  counter("dropped_messages_total", "Messages that were dropped, by reason.", "reason"),
		compared: counter("verified_sums_total", "Sums of imported state that were compared with the source's, by result; skipped ones cannot be compared.", "result"),
		sessions: gauge("sessions", "Sessions that are open, by kind.", "kind"),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "baton", Name: "mover_restarts_total", Help: "Movers that took the place of one that died.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "baton", Name: "wire_movers_lost_total", Help: "Wire movers that ended, or did not start, while they were needed.",
		}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "baton", Name: "phase_seconds", Help: "Duration of the phases of a hand-off.",
			// 50 µs (a control hop) to 26 s (a long pull over TCP).
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 20),
		}, []string{"phase"}),
	}
	labelled.MustRegister(m.handoffs, m.bytes, m.phases, m.dropped, m.sessions, m.restarts, m.lost, m.compared)
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	for _, o := range []Outcome{Admitted, Aborted, Failed, Expired} {
		m.handoffs.WithLabelValues(string(o)) // a rate needs the series before its first event
	}
	m.Compared(0, 0, 0)
	return m
}

func counter(name, help, label string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "baton", Name: name, Help: help}, []string{label})
}

func gauge(name, help, label string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "baton", Name: name, Help: help}, []string{label})
}

// Handoff counts a hand-off that ended.
func (m *Metrics) Handoff(o Outcome) { m.handoffs.WithLabelValues(string(o)).Inc() }

// Moved counts n bytes that a backend ("shm", "tcp") brought.
func (m *Metrics) Moved(backend string, n int64) { m.bytes.WithLabelValues(backend).Add(float64(n)) }

// Took notes the duration of a phase.
func (m *Metrics) Took(p Phase, d time.Duration) {
	m.phases.WithLabelValues(string(p)).Observe(d.Seconds())
}

// Dropped counts a message that was dropped.
func (m *Metrics) Dropped(r Reason) { m.dropped.WithLabelValues(string(r)).Inc() }

// Compared counts sums of what a rank read: equal to the source's, different, and not comparable.
func (m *Metrics) Compared(equal, differ, skipped int64) {
	m.compared.WithLabelValues("equal").Add(float64(equal))
	m.compared.WithLabelValues("differs").Add(float64(differ))
	m.compared.WithLabelValues("skipped").Add(float64(skipped))
}

// Sessions sets how many sessions are open.
func (m *Metrics) Sessions(k SessionKind, n int) {
	m.sessions.WithLabelValues(string(k)).Set(float64(n))
}

// MoverRestarted counts a mover that took a dead one's place.
func (m *Metrics) MoverRestarted() { m.restarts.Inc() }

// WireMoverLost counts a wire mover that ended, or did not start, while it was needed.
func (m *Metrics) WireMoverLost() { m.lost.Inc() }

// Depth shows the entries of a queue; at most once for each. count is called at every
// scrape, on any goroutine, as are the functions below.
func (m *Metrics) Depth(q Queue, count func() int) {
	m.show(prometheus.GaugeOpts{Name: "queue_depth", Help: "Entries of a bounded queue.",
		ConstLabels: prometheus.Labels{"queue": string(q)}}, func() float64 { return float64(count()) })
}

// Registered shows whether discovery shows this sidecar; at most once.
func (m *Metrics) Registered(is func() bool) {
	m.flag("registered", "1 while discovery shows this sidecar, else 0.", is)
}

// Draining shows whether this sidecar leads a group that takes no new work; at most once.
func (m *Metrics) Draining(is func() bool) {
	m.flag("draining", "1 while this sidecar's group takes no new work, else 0; its leader's alone.", is)
}

func (m *Metrics) flag(name, help string, is func() bool) {
	m.show(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		if is() {
			return 1
		}
		return 0
	})
}

// MoverPID shows the mover's process id, 0 while none runs; at most once.
func (m *Metrics) MoverPID(pid func() int32) {
	m.show(prometheus.GaugeOpts{Name: "mover_pid", Help: "Process id of the mover; 0 while none runs."},
		func() float64 { return float64(pid()) })
}

func (m *Metrics) show(o prometheus.GaugeOpts, f func() float64) {
	o.Namespace = "baton"
	m.labelled.MustRegister(prometheus.NewGaugeFunc(o, f))
}

// Grants are the leaves to pack from this rank's pins, for pulls by staging.
type Grants struct {
	Given uint64 // since the sidecar's start
	Held  int    // of them that have not ended
}

// Grants shows how many were given, have ended, and are held; at most once.
func (m *Metrics) Grants(now func() Grants) {
	m.show(prometheus.GaugeOpts{Name: "staging_grants", Help: "Grants to pack from this rank's pins that are held now."},
		func() float64 { return float64(now().Held) })
	m.count("staging_grants_given_total", "Grants to pack from this rank's pins that were given.", func() uint64 { return now().Given })
	m.count("staging_grants_ended_total", "Grants to pack from this rank's pins that have ended, by word or by the exit of who packed.",
		func() uint64 { g := now(); return g.Given - uint64(g.Held) })
}

// EventsDropped shows a publisher's own count of dropped events; at most once.
func (m *Metrics) EventsDropped(count func() uint64) {
	m.count("events_dropped_total", "Lifecycle events that were not published.", count)
}

func (m *Metrics) count(name, help string, now func() uint64) {
	m.labelled.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "baton", Name: name, Help: help},
		func() float64 { return float64(now()) }))
}
