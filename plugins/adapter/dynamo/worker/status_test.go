package worker

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/batonkv/baton/discovery"
)

// TestStatus: who asks hears whether calls find the worker, in the words of Dynamo's own; that
// it lives in any case.
func TestStatus(t *testing.T) {
	r := newRig(t, discovery.Decode, true, func(c *Config) { c.System = "127.0.0.1:0" })
	base := fmt.Sprintf("http://127.0.0.1:%d", r.worker.status.port)
	want := func(path string, status int, word string) {
		t.Helper()
		if got, body := get(t, base+path); got != status || !strings.Contains(body, word) {
			t.Errorf("%s: %d %s, want %d and %q", path, got, body, status, word)
		}
	}
	want("/health", http.StatusOK, `"endpoints":{"generate":"ready"}`)
	want("/live", http.StatusOK, `"status":"ready"`)
	r.worker.Offer(false)
	want("/health", http.StatusServiceUnavailable, `"status":"notready"`)
	want("/live", http.StatusOK, `"endpoints":{"generate":"notready"}`)
	r.worker.Offer(true)
	if err := r.worker.Ready(r.ctx()); err != nil {
		t.Fatal(err)
	}
	want("/health", http.StatusOK, `"uptime":{"nanos":`)
	want("/v1/metadata/dynamo/c/generate/tiny/_base/config.json", http.StatusNotFound, "")
	want("/none", http.StatusNotFound, "")
	if _, err := Start(Config{Dynamo: r.cfg, Component: "c", Role: discovery.Decode, Model: "tiny", System: base[len("http://"):], Log: r.log}, r.engine); !errors.Is(err, ErrListen) {
		t.Error(err)
	}
}

// TestRecordsGone: records that were placed, and are not any more, are told.
func TestRecordsGone(t *testing.T) {
	r := newRig(t, discovery.Decode, true, func(c *Config) { c.System = "127.0.0.1:0" })
	ctx := r.ctx()
	for i := 0; ; i++ { // the worker may put its records there anew before the file stands
		_ = os.Rename(r.cfg.Folder, fmt.Sprintf("%s.%d", r.cfg.Folder, i))
		err := os.WriteFile(r.cfg.Folder, nil, 0o600)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	for {
		status, _ := get(t, fmt.Sprintf("http://127.0.0.1:%d/health", r.worker.status.port))
		if status == http.StatusServiceUnavailable {
			return
		}
		if ctx.Err() != nil {
			t.Fatal("it is ready without records")
		}
	}
}

// TestCounted: calls are counted under the names of Dynamo's own workers.
func TestCounted(t *testing.T) {
	r := newRig(t, discovery.Decode, true, func(c *Config) { c.System = "127.0.0.1:0" })
	if _, _, err := r.rest(r.call(Request{Tokens: []int32{1}, Prefill: carrier(t, "baton.v1")})); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.rest(r.call(Request{Prefill: carrier(t, "baton.v1")})); err == nil {
		t.Fatal("no tokens were taken")
	}
	r.worker.tasks.Wait()
	_, body := get(t, fmt.Sprintf("http://127.0.0.1:%d/metrics", r.worker.status.port))
	own := fmt.Sprintf(`{dynamo_component="c",dynamo_endpoint="generate",dynamo_namespace="dynamo",worker_id="%x"}`, r.worker.id)
	for _, line := range []string{"dynamo_component_requests_total" + own + " 2", "dynamo_component_inflight_requests" + own + " 0", "dynamo_component_cancellation_total" + own + " 0",
		`dynamo_component_errors_total` + strings.Replace(own, `,worker_id`, `,error_type="InvalidArgument",worker_id`, 1) + " 1",
		"baton_dynamo_worker_handoffs_total" + own + " 2", "baton_dynamo_worker_releases_total" + own + " 1", "baton_dynamo_worker_releases_failed_total" + own + " 0"} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no %s in\n%s", line, body)
		}
	}
}
