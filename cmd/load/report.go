package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// stalled is after how many seconds without an end of a request progress says what is held.
const stalled = 5

// progress says every second how far the run is.
func (d *driver) progress(ctx context.Context, out io.Writer) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	before, same := 0, 0
	for {
		select {
		case <-tick.C:
			d.mu.Lock()
			line := fmt.Sprintf("%5.1f s  %d of %d requests, %.1f MiB moved", time.Since(d.began).Seconds(), d.done, d.opt.Requests, float64(d.moved)/(1<<20))
			if d.killed+d.ended > 0 {
				line += d.kills()
			}
			if same++; d.done > before {
				before, same = d.done, 0
			}
			d.mu.Unlock()
			fmt.Fprintln(out, line)
			for _, g := range d.groups {
				if h, err := g.holding(ctx); err == nil && same >= stalled {
					fmt.Fprintf(out, "         %s holds %+v\n", g.Name, h)
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// importsOver looks for imports that a leader still has, quarantine that never ended, and
// notes by which transports its rank was given bytes.
func (d *driver) importsOver(ctx context.Context, g *group) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.cluster.Sidecar(g.Running, 0).Metrics+"/metrics", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("metrics of %s: %w", g.Name, err)
	}
	defer resp.Body.Close()
	found := false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		l := lines.Text()
		var by string
		if n, _ := fmt.Sscanf(l, `baton_moved_bytes_total{backend=%q`, &by); n == 1 && !strings.HasSuffix(l, " 0") {
			d.mu.Lock()
			d.by[by] = true
			d.mu.Unlock()
		}
		if strings.HasPrefix(l, "baton_queue_depth") && strings.Contains(l, `queue="imports"`) {
			if found = true; !strings.HasSuffix(l, " 0") {
				return fmt.Errorf("%w: %s: %s", ErrLeaked, g.Name, l)
			}
		}
	}
	if !found {
		return fmt.Errorf("metrics of %s: no baton_queue_depth of imports", g.Name)
	}
	return nil
}

// print shows what became of the requests.
func (d *driver) print(out io.Writer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	took := time.Since(d.began).Seconds()
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "kind\trequests\tadmitted\trefused as it may")
	imports := 0
	for _, name := range slices.Sorted(maps.Keys(d.counts)) {
		t := d.counts[name]
		imports += t.imports
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", name, t.requests, t.imports, t.refused)
	}
	_ = w.Flush()
	fmt.Fprintf(out, "\nseed %d: %d requests in %.1f s (%.0f/s), %d imports admitted and compared, %.1f MiB moved", d.opt.Seed, d.done, took,
		float64(d.done)/took, imports, float64(d.moved)/(1<<20))
	if len(d.by) > 0 {
		fmt.Fprintf(out, " by %s", strings.Join(slices.Sorted(maps.Keys(d.by)), ", "))
	}
	if d.opt.Parts {
		fmt.Fprintf(out, ", %d begun while their prompts were computed", d.late)
	}
	if d.killed+d.ended > 0 {
		fmt.Fprint(out, d.kills())
	}
	fmt.Fprintln(out)
}

// verdict is what engines found wrong, nil when they found nothing.
func (d *driver) verdict() error {
	var all []error
	for _, g := range d.groups {
		g.mu.Lock()
		for _, w := range g.wrong[:min(len(g.wrong), 20)] {
			all = append(all, fmt.Errorf("%w: %s", ErrWrong, w))
		}
		g.mu.Unlock()
	}
	return errors.Join(all...)
}
