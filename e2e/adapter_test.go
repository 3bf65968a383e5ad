package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/examples/adapter/webhook"
	"github.com/batonkv/baton/sidecar/control"
)

// sample builds the sample adapter.
func sample(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sample")
	out, err := exec.CommandContext(bounded(t), "go", "build", "-o", path, "../examples/adapter").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// hooks gives the prefill groups a sample of their own process, and the decode groups one
// that is built in. Their files are in dir.
func hooks(program, dir string) dev.Adapters {
	return func(g dev.Group) []config.Adapter {
		a := config.Adapter{Name: "hook", Section: "file: " + filepath.Join(dir, g.Name)}
		if a.BuiltIn = "webhook"; g.Role == discovery.Prefill {
			a.BuiltIn, a.Command = "", []string{program}
		}
		return []config.Adapter{a}
	}
}

// shown is what the file of a group's adapter holds.
func shown(t *testing.T, path string) (e webhook.Event) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err == nil {
		if err := json.Unmarshal(b, &e); err != nil {
			t.Errorf("%q: %v", b, err)
		}
	}
	return e
}

// speaks waits until the file shows what the group's leader lists.
func (w *world) speaks(g *dev.Running, path string, held int) {
	w.t.Helper()
	var e webhook.Event
	var page control.Page
	defer func() {
		if w.t.Failed() {
			w.t.Logf("%s: the file shows %+v, the leader %+v", g.Name, e, page)
		}
	}()
	eventually(w.t, g.Name+"'s file shows what is", func() bool {
		var err error
		if page, err = g.Leader.List(bounded(w.t), control.Query{Live: true}); err != nil {
			w.t.Fatal(err)
		}
		e = shown(w.t, path)
		for _, i := range page.Infos {
			if e.Handoffs[i.ID.String()] != i.Phase.String() {
				return false
			}
		}
		return e.Ready && e.Group == g.Name && len(e.Handoffs) == len(page.Infos) && len(page.Infos) == held
	})
}

// processes are those of a program.
func processes(program string) (pids []int) {
	all, _ := os.ReadDir("/proc")
	for _, d := range all {
		exe, err := os.Readlink(filepath.Join("/proc", d.Name(), "exe"))
		if pid, perr := strconv.Atoi(d.Name()); err == nil && perr == nil && exe == program {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestAdapterKilledUnderLoad: kills of an adapter, again and again, disturb no hand-off,
// and what it shows becomes right again. It says good-bye when its sidecar stops.
func TestAdapterKilledUnderLoad(t *testing.T) {
	program, dir := sample(t), t.TempDir()
	t.Cleanup(func() { // after the cluster is down
		for _, g := range []string{"prefill-0", "decode-0"} {
			if e := shown(t, filepath.Join(dir, g)); e.Kind != "drain" {
				t.Errorf("%s: the last word is %+v", g, e)
			}
		}
		if left := processes(program); len(left) > 0 {
			t.Errorf("outlive their sidecar: %v", left)
		}
	})
	w := up(t, "tp=1,role=prefill+tp=2,role=decode", "hybrid", func(o *dev.Options) { o.Adapters = hooks(program, dir) })
	prefill, decode := filepath.Join(dir, "prefill-0"), filepath.Join(dir, "decode-0")
	w.speaks(w.prefill, prefill, 0)
	w.speaks(w.decode, decode, 0)
	if n := len(processes(program)); n != 1 {
		t.Fatalf("%d processes of the sample", n)
	}
	kills := w.killUnderLoad(program)
	eventually(t, "every kill is counted", func() bool { return w.metric(w.prefill, "baton_adapter_restarts_total") == float64(kills) })
	eventually(t, "the adapter serves", func() bool { return w.metric(w.prefill, `stage="serving"`) == 1 })
	w.speaks(w.prefill, prefill, 0)
	w.speaks(w.decode, decode, 0)
	held, err := w.export(bounded(t), w.prefill, "held", prompt(1, 40))
	if err != nil {
		t.Fatal(err)
	}
	w.speaks(w.prefill, prefill, 1)
	w.killSample(program)
	if err := w.prefill.Leader.Release(bounded(t), held.ID, held.Key); err != nil {
		t.Error(err)
	}
	w.speaks(w.prefill, prefill, 0)
	resp, err := http.Get("http://" + w.prefill.Ranks[0].Sidecar.Metrics + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(b), "adapter hook: ") {
		t.Errorf("healthz: %d %q, %v", resp.StatusCode, b, err)
	}
	if n := w.metric(w.decode, "baton_adapter_restarts_total"); n != 0 {
		t.Errorf("the built-in adapter was restarted %v times", n)
	}
	t.Logf("%d kills", kills)
}

// killUnderLoad ends the sample again and again while requests move, and says how often.
func (w *world) killUnderLoad(program string) int {
	w.t.Helper()
	kills := 0
	var load sync.WaitGroup
	over := make(chan struct{})
	for i := range 3 {
		load.Go(func() {
			for n := range 6 {
				if !w.request(fmt.Sprintf("r%d-%d", i, n), prompt(10*i+n, 30), false, false) {
					w.t.Errorf("a hand-off ended")
				}
			}
		})
	}
	go func() { load.Wait(); close(over) }()
	for running := true; running; kills++ {
		w.killSample(program)
		select {
		case <-over:
			running = false
		default:
		}
	}
	return kills
}

// killSample ends the sample's process, whichever life it is.
func (w *world) killSample(program string) {
	w.t.Helper()
	p := watch(w.t, w.another(program))
	p.signal(w.t, unix.SIGKILL)
	p.gone(w.t, "the sample")
}

// another waits for the process that the sidecar starts.
func (w *world) another(program string) (pid int) {
	w.t.Helper()
	eventually(w.t, "the sample runs", func() bool {
		if all := processes(program); len(all) == 1 {
			pid = all[0]
		}
		return pid != 0
	})
	return pid
}
