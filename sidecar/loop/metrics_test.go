package loop

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/fault"
	"github.com/batonkv/baton/transfer/lower"
)

// scrape adds up the series of a sidecar whose names and labels hold word; -1: none.
func (s *side) scrape(t *testing.T, word string) float64 {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	served, err := s.cfg.Metrics.Serve(ctx, "127.0.0.1:0", nil)
	check(t, err)
	defer func() { cancel(); check(t, served.Wait()) }()
	resp, err := http.Get("http://" + served.Addr() + "/metrics")
	check(t, err)
	defer resp.Body.Close()
	sum, found := 0.0, false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		if i := strings.LastIndexByte(line, ' '); !strings.HasPrefix(line, "#") && i > 0 && strings.Contains(line[:i], word) {
			v, err := strconv.ParseFloat(line[i+1:], 64)
			check(t, err)
			sum, found = sum+v, true
		}
	}
	if !found {
		return -1
	}
	return sum
}

func TestMetrics(t *testing.T) {
	hold, held := make(chan struct{}), make(chan struct{}, 8)
	r := cluster(t, func(transfer.PeerID, lower.Job) fault.Fate {
		held <- struct{}{}
		return fault.Fate{Hold: hold}
	})
	d := r.sides["d/0"]
	d.becomes("")
	d.MoverRestarted(22)
	d.pid.Store(22)
	man := r.export("p", "r1", 20)
	ended := make(chan error, 1)
	go func() {
		_, err := r.importNow(t.Context(), "d", man)
		ended <- err
	}()
	<-held
	check(t, d.Service().ask(t.Context(), func() {})) // the step that pulled is over
	for word, want := range map[string]float64{`queue="imports"`: 1, `queue="loop_inbox"`: 0, "baton_registered": 1,
		"baton_staging_grants{": 0, "baton_staging_grants_given_total": 0, "baton_mover_pid": 22, "baton_mover_restarts_total": 1, "baton_moved_bytes_total": -1} {
		if got := d.scrape(t, word); got != want {
			t.Errorf("%s while it copies: %v, want %v", word, got, want)
		}
	}
	close(hold)
	check(t, <-ended)
	check(t, d.Service().ask(t.Context(), func() {}))
	for word, want := range map[string]float64{`queue="imports"`: 0, `moved_bytes_total{backend="shm"`: 20 * layers * units * unitBytes,
		`outcome="admitted"`: 1} {
		if got := d.scrape(t, word); got != want {
			t.Errorf("%s: %v, want %v", word, got, want)
		}
	}
}
