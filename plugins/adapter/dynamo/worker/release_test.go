package worker

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/sidecar/handoff"
)

// counted is a counter's value.
func counted(t *testing.T, r *prometheus.Registry, name string) float64 {
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no %s", name)
	return 0
}

// TestUsedUpIsNotReleased: what an import has used up is asked for, and counts as no release.
func TestUsedUpIsNotReleased(t *testing.T) {
	r := newRig(t, discovery.Decode, true)
	r.gone, r.engine.err = dynamo.Fault(handoff.ErrGone), handoff.ErrCapacity
	counts := r.worker.meter.registry
	if _, _, err := r.rest(r.call(Request{Tokens: []int32{1}, Prefill: carrier(t, dynamo.Carrier)})); err == nil {
		t.Error("a failure is an answer")
	}
	r.wantReleased()
	for _, name := range []string{"releases_total", "releases_failed_total"} {
		if n := counted(t, counts, "baton_dynamo_worker_"+name); n != 0 {
			t.Errorf("%s: %v", name, n)
		}
	}
}

// TestReleasesAreBounded: however many manifests callers bring.
func TestReleasesAreBounded(t *testing.T) {
	r := newRig(t, discovery.Decode, true)
	r.engine.err = handoff.ErrCapacity
	counts := r.worker.meter.registry
	for range cap(r.worker.releases) {
		r.worker.releases <- struct{}{}
	}
	if _, _, err := r.rest(r.call(Request{Tokens: []int32{1}, Prefill: carrier(t, dynamo.Carrier)})); err == nil {
		t.Error("a failure is an answer")
	}
	r.wantNone()
	if n := counted(t, counts, "baton_dynamo_worker_releases_failed_total"); n != 1 {
		t.Errorf("%v are left to their leases, want 1", n)
	}
}
