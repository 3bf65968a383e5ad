package e2e

import (
	"net/http"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// twoDecode are a group that prefills and two that decode: prefill-0, decode-0, decode-1.
const twoDecode = "tp=1,role=prefill+tp=1,dp=2,role=decode"

// TestFrontendGroupDrains: while a group drains, users of the frontend do not notice, and
// afterwards it takes requests again.
func TestFrontendGroupDrains(t *testing.T) {
	f := frontend(t, "round-robin", twoDecode)
	w := f.workers[1]
	drain := func(more ...string) {
		t.Helper()
		args := append([]string{"drain", w.group.Name, "--config", f.Control()}, more...)
		if out, err := exec.CommandContext(bounded(t), binary, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	f.without(w, func() { drain() })
	f.with(w, func() { drain("--resume") })
}

// TestFrontendHungEngine: while an engine does not answer, users of the frontend do not wait
// for it, and afterwards it takes requests again.
func TestFrontendHungEngine(t *testing.T) {
	f := frontend(t, "round-robin", twoDecode)
	f.ended()
	w := f.workers[1]
	engine := watch(t, w.group.Ranks[0].Engine.PID)
	t.Cleanup(func() { _ = unix.PidfdSendSignal(engine.fd, unix.SIGCONT, nil, 0) }) // it may have gone
	f.without(w, func() { engine.halt(t) })
	f.with(w, func() { engine.signal(t, unix.SIGCONT) })
}

// without has a worker leave, and holds users to answers that others give.
func (f *fronted) without(w attendant, leave func()) {
	f.t.Helper()
	leave()
	eventually(f.t, "the worker is not ready", func() bool { return f.health(w) == http.StatusServiceUnavailable })
	eventually(f.t, "the frontend passes over it", func() bool { return f.served(4) })
	before := scrape(f.t, w.status, "dynamo_component_requests_total")
	if !f.served(20) {
		f.t.Error("a request failed")
	}
	if after := scrape(f.t, w.status, "dynamo_component_requests_total"); after != before {
		f.t.Errorf("a worker that is not ready was called %v times", after-before)
	}
}

// with has it come back, and users' requests come to it.
func (f *fronted) with(w attendant, back func()) {
	f.t.Helper()
	back()
	eventually(f.t, "the worker is ready", func() bool { return f.health(w) == http.StatusOK })
	before := scrape(f.t, w.status, "dynamo_component_requests_total")
	eventually(f.t, "requests come to it", func() bool {
		if !f.served(2) {
			f.t.Error("a request failed")
		}
		return scrape(f.t, w.status, "dynamo_component_requests_total") > before
	})
}

// served asks n times, and reports whether each was answered.
func (f *fronted) served(n int) bool {
	f.t.Helper()
	for range n {
		if status, body := f.answer("completions", ask{Prompt: "goes on", Max: 2}); status != http.StatusOK {
			f.t.Logf("%d %s", status, body)
			return false
		}
	}
	return true
}

// health is the status with which a worker answers /health.
func (f *fronted) health(w attendant) int {
	f.t.Helper()
	resp, err := http.Get("http://" + w.status + "/health")
	if err != nil {
		f.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestFrontendNoSidecar: an engine whose sidecar does not come back is passed over.
func TestFrontendNoSidecar(t *testing.T) {
	f := frontend(t, "round-robin", twoDecode)
	f.ended()
	w := f.workers[1]
	f.without(w, func() { killed(t, f.Sidecar(w.group, 0).PID) })
}
