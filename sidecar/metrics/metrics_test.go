package metrics

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestServe(t *testing.T) {
	m := New("c", "p", "g", "0")
	m.Handoff(Admitted)
	m.Moved("shm", 4096)
	m.Took(Move, 3*time.Millisecond)
	m.Dropped(Stale)
	m.Sessions(PeerSession, 2)
	m.Depth(Imports, func() int { return 5 })
	m.Depth(LoopInbox, func() int { return 6 })
	m.MoverRestarted()
	m.WireMoverLost()
	m.MoverPID(func() int32 { return 4711 })
	m.Registered(func() bool { return true })
	m.EventsDropped(func() uint64 { return 7 })
	var sick error
	ctx, cancel := context.WithCancel(t.Context())
	s, err := m.Serve(ctx, "127.0.0.1:0", func() error { return sick })
	if err != nil {
		t.Fatal(err)
	}
	_, body := get(t, "http://"+s.Addr()+"/metrics")
	const names = `cluster="c",group="g",`
	for _, want := range []string{
		`baton_handoffs_total{` + names + `outcome="admitted",pool="p",rank="0"} 1`,
		`baton_handoffs_total{` + names + `outcome="failed",pool="p",rank="0"} 0`,
		`baton_moved_bytes_total{backend="shm",` + names + `pool="p",rank="0"} 4096`,
		`baton_phase_seconds_count{` + names + `phase="move",pool="p",rank="0"} 1`,
		`baton_phase_seconds_bucket{` + names + `phase="move",pool="p",rank="0",le="0.0032"} 1`,
		`baton_dropped_messages_total{` + names + `pool="p",rank="0",reason="stale"} 1`,
		`baton_sessions{` + names + `kind="peer",pool="p",rank="0"} 2`,
		`baton_queue_depth{` + names + `pool="p",queue="imports",rank="0"} 5`,
		`baton_queue_depth{` + names + `pool="p",queue="loop_inbox",rank="0"} 6`,
		`baton_events_dropped_total{` + names + `pool="p",rank="0"} 7`,
		`baton_mover_restarts_total{` + names + `pool="p",rank="0"} 1`, `baton_wire_movers_lost_total{` + names + `pool="p",rank="0"} 1`,
		`baton_mover_pid{` + names + `pool="p",rank="0"} 4711`,
		`baton_registered{` + names + `pool="p",rank="0"} 1`,
		`process_resident_memory_bytes`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("lacks %s", want)
		}
	}
	if code, body := get(t, "http://"+s.Addr()+"/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("%d %q", code, body)
	}
	sick = errors.New("registration lost")
	if code, body := get(t, "http://"+s.Addr()+"/healthz"); code != 503 || !strings.Contains(body, "registration lost") {
		t.Errorf("%d %q", code, body)
	}
	if _, err := m.Serve(ctx, s.Addr(), nil); !errors.Is(err, ErrListen) || !strings.Contains(err.Error(), s.Addr()) {
		t.Errorf("a used port: %v", err)
	}
	cancel()
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := http.Get("http://" + s.Addr() + "/healthz"); err == nil {
		t.Error("answers after its context ended")
	}
}

func TestLevels(t *testing.T) {
	m := New("c", "p", "g", "0")
	m.Draining(func() bool { return true })
	m.Grants(func() Grants { return Grants{Given: 9, Held: 4} })
	ctx, cancel := context.WithCancel(t.Context())
	s, err := m.Serve(ctx, "127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, body := get(t, "http://"+s.Addr()+"/metrics")
	const names = `{cluster="c",group="g",pool="p",rank="0"} `
	for _, want := range []string{"baton_draining" + names + "1", "baton_staging_grants" + names + "4",
		"baton_staging_grants_given_total" + names + "9", "baton_staging_grants_ended_total" + names + "5"} {
		if !strings.Contains(body, want) {
			t.Errorf("lacks %s", want)
		}
	}
	cancel()
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
}

func TestAdapters(t *testing.T) {
	m := New("c", "p", "g", "0")
	m.Adapter("hook", []string{"waiting", "serving"}, func() Adapter {
		return Adapter{Stage: "waiting", Restarts: 3, Coalesced: 2, Lost: 40, Err: errors.New("killed")}
	}, func() map[string]float64 {
		return map[string]float64{"kv_blocks": 2.5, "kv_events_total": 7, "stage": 9, "restarts_total": 9, "no name": 1}
	})
	m.Adapter("other", []string{"waiting", "serving"}, func() Adapter { return Adapter{Stage: "serving"} },
		func() map[string]float64 { return map[string]float64{"kv_events_total": 8} })
	var sick error
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := m.Serve(ctx, "127.0.0.1:0", func() error { return sick })
	if err != nil {
		t.Fatal(err)
	}
	_, body := get(t, "http://"+s.Addr()+"/metrics")
	for _, want := range []string{
		`baton_adapter_stage{adapter="hook",cluster="c",group="g",pool="p",rank="0",stage="waiting"} 1`,
		`baton_adapter_stage{adapter="hook",cluster="c",group="g",pool="p",rank="0",stage="serving"} 0`,
		`baton_adapter_stage{adapter="other",cluster="c",group="g",pool="p",rank="0",stage="serving"} 1`,
		`baton_adapter_restarts_total{adapter="hook",cluster="c",group="g",pool="p",rank="0"} 3`,
		`baton_adapter_coalesced_total{adapter="hook",cluster="c",group="g",pool="p",rank="0"} 2`,
		`baton_adapter_lost_notices_total{adapter="hook",cluster="c",group="g",pool="p",rank="0"} 40`,
		`baton_adapter_kv_blocks{adapter="hook",cluster="c",group="g",pool="p",rank="0"} 2.5`,
		`baton_adapter_kv_events_total{adapter="hook",cluster="c",group="g",pool="p",rank="0"} 7`,
		`baton_adapter_kv_events_total{adapter="other",cluster="c",group="g",pool="p",rank="0"} 8`,
		"# TYPE baton_adapter_kv_blocks gauge", "# TYPE baton_adapter_kv_events_total counter",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("lacks %s", want)
		}
	}
	if strings.Contains(body, " 9\n") {
		t.Error("a count of an adapter's own is in the place of another")
	}
	lines := "adapter hook: waiting, 3 restarts: killed\nadapter other: serving, 0 restarts\n"
	if code, body := get(t, "http://"+s.Addr()+"/healthz"); code != 200 || body != "ok\n"+lines {
		t.Errorf("%d %q", code, body)
	}
	sick = errors.New("no engine")
	if code, body := get(t, "http://"+s.Addr()+"/healthz"); code != 503 || body != "no engine\n"+lines {
		t.Errorf("%d %q", code, body)
	}
	cancel()
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
}

func TestLinks(t *testing.T) {
	m := New("c", "p", "g", "0")
	m.Links(func() []Link {
		return []Link{{Peer: "p/1", Transport: "tcp", Way: "tls", Code: "lacks", Fallback: true, Verdict: "degraded", Rate: 5e6, Expected: 1e9, Latency: 2 * time.Millisecond},
			{Peer: "p/2", Transport: "shm", Way: "copy", Code: "mapped", Verdict: "good"}}
	})
	s, err := m.Serve(t.Context(), "127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, body := get(t, "http://"+s.Addr()+"/metrics")
	const names = `cluster="c",group="g",`
	for _, want := range []string{
		`baton_link_info{cluster="c",code="lacks",group="g",peer="p/1",pool="p",rank="0",transport="tcp",verdict="degraded",way="tls"} 1`,
		`baton_link_fallback{` + names + `peer="p/1",pool="p",rank="0",transport="tcp"} 1`,
		`baton_link_fallback{` + names + `peer="p/2",pool="p",rank="0",transport="shm"} 0`,
		`baton_link_bytes_per_second{` + names + `peer="p/1",pool="p",rank="0",transport="tcp"} 5e+06`,
		`baton_link_expected_bytes_per_second{` + names + `peer="p/1",pool="p",rank="0",transport="tcp"} 1e+09`,
		`baton_link_latency_seconds{` + names + `peer="p/1",pool="p",rank="0",transport="tcp"} 0.002`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("lacks %s", want)
		}
	}
}
