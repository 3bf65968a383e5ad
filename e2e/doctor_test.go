package e2e

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
)

// diagnosis is what these tests read of `baton doctor -o json`.
type diagnosis struct {
	Well  bool
	Links []struct {
		Reader, Peer, Transport, Way, Code, Why, Verdict, Cause, Fix string
		Rate                                                         float64 `json:"bytes_per_second"`
		Expected                                                     float64 `json:"expected_bytes_per_second"`
	}
	Silent []struct{ Sidecar, Error string }
}

// doctor runs it to its end.
func (w *world) doctor(args ...string) (d diagnosis, code int) {
	w.t.Helper()
	cmd := exec.CommandContext(bounded(w.t), binary, append([]string{"doctor", "-o", "json", "--config", w.Control()}, args...)...)
	out, err := cmd.Output()
	if len(out) == 0 {
		w.t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
	}
	if err := json.Unmarshal(out, &d); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	return d, cmd.ProcessState.ExitCode()
}

// TestDoctor: between sidecars that have not met, links are opened and measured; links
// of memory that is mapped are good; a group that is not there is named with one that is.
func TestDoctor(t *testing.T) {
	const shards = "tp=2,role=prefill+tp=1,role=decode"
	t.Run("tcp", func(t *testing.T) {
		w := up(t, shards, "attention", func(o *dev.Options) { o.Backend = "tcp" })
		if d, _ := w.doctor("--known"); len(d.Links) != 2 || d.Links[0].Verdict != "unmeasured" || d.Links[0].Rate != 0 {
			t.Errorf("nothing is known yet, and yet %+v", d)
		}
		d, _ := w.doctor("decode-0") // a host that runs other tests may be slow: the verdict is another test's
		if len(d.Links) != 2 || len(d.Silent) != 0 {
			t.Fatalf("%+v", d)
		}
		for i, l := range d.Links {
			if l.Reader != "decode-0/0" || l.Peer != "prefill-0/"+string(rune('0'+i)) || l.Transport != "tcp" || l.Way != "tls" || l.Rate <= 0 || l.Expected <= 0 ||
				!strings.Contains(l.Why, "staging.when is always") {
				t.Errorf("%+v", l)
			}
		}
		x := w.watching("--kept")
		x.until("decode-0", "link", "rank 0")
		w.handoff("r1", prompt(1, 40))
	})
	t.Run("shm", func(t *testing.T) {
		w := up(t, shards, "attention")
		w.handoff("r1", prompt(1, 40))
		d, code := w.doctor()
		if code != 0 || !d.Well || len(d.Links) != 2 || d.Links[0].Code != "mapped" || d.Links[1].Verdict != "good" {
			t.Fatalf("code %d, %+v", code, d)
		}
		cmd := exec.CommandContext(bounded(t), binary, "doctor", "prefill", "--config", w.Control())
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "prefill-0") {
			t.Errorf("%d %s", cmd.ProcessState.ExitCode(), out)
		}
	})
}
