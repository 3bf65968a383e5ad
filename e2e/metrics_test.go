package e2e

import (
	"bufio"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
)

// TestMetrics: what a sidecar counts is what was moved and how it ended.
func TestMetrics(t *testing.T) {
	w := up(t, "tp=2,role=prefill+tp=2,role=decode", "hybrid")
	var moved int64
	for i := range 3 {
		moved += w.handoff("r"+strconv.Itoa(i), prompt(i, 10+20*i)).Bytes
	}
	if got := w.metric(w.decode, "baton_moved_bytes_total"); got != float64(moved) {
		t.Errorf("moved %v bytes, want %d", got, moved)
	}
	if got := w.metric(w.decode, `outcome="admitted"`); got != 3 {
		t.Errorf("%v hand-offs admitted, want 3", got)
	}
	for _, name := range []string{"baton_dropped_messages_total", `outcome="failed"`, "baton_events_dropped_total"} {
		for _, g := range w.Groups {
			if got := w.metric(g, name); got != 0 {
				t.Errorf("%s: %s is %v", g.Name, name, got)
			}
		}
	}
	if code := healthz(t, w.decode.Ranks[0].Sidecar.Metrics); code != http.StatusOK {
		t.Errorf("healthz of an attached rank: %d", code)
	}
	file, _ := w.sidecarFile("lonely")
	_, lonely := w.sidecar(file)
	if code := healthz(t, lonely.Metrics); code != http.StatusServiceUnavailable {
		t.Errorf("healthz without an engine: %d", code)
	}
}

func healthz(t *testing.T, addr string) int {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// metric adds up the series of a group whose names and labels hold word.
func (w *world) metric(g *dev.Running, word string) (sum float64) {
	w.t.Helper()
	for _, k := range g.Ranks {
		sum += scrape(w.t, k.Sidecar.Metrics, word)
	}
	return sum
}

// scrape adds up the series of a process whose names and labels hold word.
func scrape(t *testing.T, addr, word string) (sum float64) {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || i < 0 || !strings.Contains(line[:i], word) {
			continue
		}
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		sum += v
	}
	return sum
}
