package doctor

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/route"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
)

func link(reader, peer string, c choice.Choice, m choice.Measured, f choice.Finding) handoff.Link {
	return handoff.Link{Reader: handoff.Member{Group: reader}, Peer: handoff.Member{Group: peer}, Choice: c, Age: time.Minute, Measured: m, Expected: 2e9,
		Against: "itself", Finding: f}
}

var tcp = choice.Choice{Transport: "tcp", Code: choice.Lacks, Why: "other host: tcp, because nixl is not there on p/0: no library", Way: choice.TLS}

func ask(ls ...handoff.Link) Report {
	return Report{Readers: 1, Asked: []route.Asked{{Record: discovery.Record{Group: "d", Ranks: 1}, Links: control.Links{Links: ls}}}}
}

func text(t *testing.T, r Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestText(t *testing.T) {
	good := link("d", "p", tcp, choice.Measured{Rate: 1.2345e9, Latency: 120 * time.Microsecond}, choice.Finding{Verdict: choice.Good})
	bad := link("d", "q", choice.Choice{Transport: "nixl", Code: choice.Best, Why: "same host: nixl", Way: choice.Emulation, Caveat: "other namespaces"},
		choice.Measured{Rate: 4e6, Latency: time.Millisecond}, choice.Finding{Verdict: choice.Degraded, Cause: "tcp emulation: other\x1bnamespaces", Fix: "join them"})
	none := link("d", "r", choice.Choice{Code: choice.None, Why: "no transport"}, choice.Measured{}, choice.Finding{Verdict: choice.Broken, Cause: "none", Fix: "set one"})
	r := ask(good, link("d", "s", tcp, choice.Measured{}, choice.Finding{Verdict: choice.Unmeasured}), bad, none)
	r.Asked = append(r.Asked, route.Asked{Record: discovery.Record{Group: "e", Rank: 1, Ranks: 2, Addr: "h:1"}, Err: handoff.ErrPeer})
	const want = `READER  FROM  TRANSPORT       MEASURED   EXPECTED   ONE READ  AGE  VERDICT
d/0     p/0   tcp (tls)       1.23 GB/s  2.00 GB/s  0.12 ms   new  good
d/0     s/0   tcp (tls)       -          2.00 GB/s  -         -    unmeasured
d/0     q/0   nixl (ucx-tcp)  4.0 MB/s   2.00 GB/s  1.00 ms   new  degraded
d/0     r/0   none            -          2.00 GB/s  -         -    broken

why
  other host: tcp, because nixl is not there on p/0: no library
    d/0 from p/0, d/0 from s/0
  same host: nixl
    d/0 from q/0
  no transport
    d/0 from r/0

wrong
  d/0 from q/0 is degraded: tcp emulation: other·namespaces
    join them
  d/0 from r/0 is broken: none
    set one
  e/1 at h:1 does not answer: handoff: peer lost

4 links: 1 good, 1 unmeasured, 1 degraded, 1 broken
`
	if got := strings.ReplaceAll(text(t, r), handoff.ErrPeer.Error(), "handoff: peer lost"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	err := r.Verdict()
	if !errors.Is(err, ErrUnwell) || !strings.Contains(err.Error(), "1 link broken, 1 link degraded, 1 sidecar without an answer") {
		t.Error(err)
	}
}

func TestNothingThere(t *testing.T) {
	for want, r := range map[string]Report{
		"no sidecar is registered in this cluster":  {},
		"no rank here may read: all groups prefill": {Asked: []route.Asked{{Record: discovery.Record{Group: "p", Ranks: 1}}}},
		"no rank here may be read by another":       ask(),
		"no link is known yet":                      {Readers: 1, Asked: []route.Asked{{Record: discovery.Record{Group: "d", Ranks: 1}}, {Record: discovery.Record{Group: "p", Ranks: 1}}}},
	} {
		if got := text(t, r); !strings.Contains(got, want) || r.Verdict() != nil {
			t.Errorf("%q, %v: want %q", got, r.Verdict(), want)
		}
	}
}

// TestLacking: a group whose ranks are not all attached is a finding, once.
func TestLacking(t *testing.T) {
	r := ask(link("d", "p", tcp, choice.Measured{Rate: 1e9}, choice.Finding{Verdict: choice.Good}))
	for rank := range int32(2) {
		r.Asked = append(r.Asked, route.Asked{Record: discovery.Record{Group: "p", Rank: rank}})
	}
	if err := r.Verdict(); !errors.Is(err, ErrUnwell) || !strings.Contains(err.Error(), "1 group not ready") {
		t.Error(err)
	}
	if got := text(t, r); strings.Count(got, "group p is not ready") != 1 || !strings.Contains(got, "\nwrong\n") {
		t.Error(got)
	}
	var b strings.Builder
	if err := r.JSON(&b); err != nil || !strings.Contains(b.String(), `"not_ready": [`+"\n    \"p\"") {
		t.Errorf("%v %s", err, b.String())
	}
	r.Asked[2].Record.Ranks = 2 // whoever of the group says so
	if r.Verdict() != nil {
		t.Error(r.Verdict())
	}
}

// TestSilentAlone: who does not answer may read and be read.
func TestSilentAlone(t *testing.T) {
	r := ask()
	r.Asked = append(r.Asked, route.Asked{Record: discovery.Record{Group: "p", Ranks: 1}, Err: handoff.ErrPeer})
	if got := text(t, r); !strings.Contains(got, "no link is known: what the sidecars without an answer") || strings.Contains(got, "may be read") {
		t.Error(got)
	}
}

// TestGone: who did not answer and is not there any more is said to be gone, and is no fault.
func TestGone(t *testing.T) {
	r := ask(link("d", "p", tcp, choice.Measured{Rate: 1e9}, choice.Finding{Verdict: choice.Good}))
	r.Asked = append(r.Asked, route.Asked{Record: discovery.Record{Group: "e", Rank: 1, Addr: "h:1"}, Err: handoff.ErrPeer, Gone: true})
	if got := text(t, r); r.Verdict() != nil || !strings.Contains(got, "e/1 at h:1 did not answer and has left discovery meanwhile: it is gone, or it hangs\n") || strings.Contains(got, "wrong") {
		t.Errorf("%v\n%s", r.Verdict(), got)
	}
}

// TestUnanswered: a link that was to be measured and was not is not well, and says how old
// its figures are; who asked for no measurement is told what is known.
func TestUnanswered(t *testing.T) {
	l := link("d", "p", tcp, choice.Measured{Rate: 1e9}, choice.Finding{Verdict: choice.Unmeasured, Cause: "no end", Fix: "ask again"})
	l.Ago = 90 * time.Second
	r := ask(l)
	if err := r.Verdict(); !errors.Is(err, ErrUnwell) || !strings.Contains(err.Error(), "1 link unmeasured") {
		t.Error(err)
	}
	if got := text(t, r); !strings.Contains(got, "d/0 from p/0 is unmeasured: no end\n    ask again") || !strings.Contains(got, "1m30s") {
		t.Error(got)
	}
	if r.Known = true; r.Verdict() != nil || strings.Contains(text(t, r), "wrong") {
		t.Error("nothing was to be measured")
	}
}

func TestJSON(t *testing.T) {
	r := ask(link("d", "p", tcp, choice.Measured{Rate: 5, Latency: time.Second}, choice.Finding{Verdict: choice.Degraded, Cause: "c", Fix: "f"}))
	var b strings.Builder
	if err := r.JSON(&b); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Well   bool
		Silent []any
		Links  []map[string]any
	}
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatal(err)
	}
	if got.Well || got.Silent == nil || len(got.Links) != 1 {
		t.Fatalf("%+v", got)
	}
	for k, v := range map[string]any{"reader": "d/0", "peer": "p/0", "transport": "tcp", "way": "tls", "code": "lacks", "fallback": true, "bytes_per_second": 5.0,
		"latency_seconds": 1.0, "expected_bytes_per_second": 2e9, "expected_by": "itself", "verdict": "degraded", "cause": "c", "fix": "f", "chosen_seconds_ago": 60.0} {
		if got.Links[0][k] != v {
			t.Errorf("%s: %v, want %v", k, got.Links[0][k], v)
		}
	}
}

// TestSteers: nothing that a sidecar says steers a terminal.
func TestSteers(t *testing.T) {
	l := link("d\x1b", "p\x1b", choice.Choice{Transport: "tcp\x1b", Why: "why\x1b", Way: "tls\x1b"}, choice.Measured{}, choice.Finding{Verdict: choice.Degraded, Cause: "c\x1b", Fix: "f\x1b"})
	other := l
	other.Choice.Way, other.Finding.Verdict = choice.Copy, "odd\x1b"
	if got := text(t, ask(l, other)); strings.Contains(got, "\x1b") {
		t.Errorf("%q", got)
	}
}
