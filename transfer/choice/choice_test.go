package choice

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// end is one on host h that offers what its words say: "nixl", or "nixl!why" that lacks it.
func end(name, h string, offers ...string) End {
	e := End{Name: name, Host: h, Process: Process{PIDs: "pid:[1]"}}
	for _, o := range offers {
		n, why, _ := strings.Cut(o, "!")
		n, protocol, given := strings.Cut(n, "=")
		if !given {
			protocol = n + "/1"
		}
		e.Offers = append(e.Offers, Offer{n, protocol, why})
	}
	return e
}

// choosing is two ends and what one of them chooses.
type choosing struct {
	name      string
	own, peer End
	memory    Memory
	want      string // transport code way
	why       string
}

func (c choosing) check(t *testing.T) {
	t.Helper()
	got, err := Choose(c.own, c.peer, c.memory)
	if s := got.Transport + " " + string(got.Code) + " " + string(got.Way); s != c.want || got.Why != c.why {
		t.Errorf("%s: %s: %s\nwant %s: %s", c.name, s, got.Why, c.want, c.why)
	}
	if none := got.Transport == ""; none != (err != nil) || none != errors.Is(err, ErrNone) {
		t.Errorf("%s: transport %q, error %v", c.name, got.Transport, err)
	}
}

func TestChoose(t *testing.T) {
	all := []string{"shm", "nixl", "tcp"}
	with := func(e End, f func(*Process)) End { f(&e.Process); return e }
	rdma := func(p *Process) { p.RDMA = 50e9 }
	for _, c := range []choosing{
		{"same host", end("a/0", "h", all...), end("b/0", "h", all...), Memory{}, "shm mapped copy", "same host: memory is mapped"},
		{"same host, staged always at the peer", end("a/0", "h", all...), end("b/0", "h", "shm!staging.when is always", "nixl", "tcp"), Memory{},
			"nixl best cma", "same host: nixl; its memory is not mapped: shm is not there on b/0: staging.when is always"},
		{"same host, its socket is not reached", end("a/0", "h", all...), end("b/0", "h", all...), Memory{Unmapped: "no such file"},
			"nixl unmapped cma", "same host: nixl; its memory is not mapped: no such file"},
		{"other host with RDMA", with(end("a/0", "h", all...), rdma), with(end("b/0", "g", all...), rdma), Memory{}, "nixl best rdma", "other host: nixl"},
		{"other host, RDMA at one end", with(end("a/0", "h", all...), rdma), end("b/0", "g", all...), Memory{}, "tcp emulated tls",
			"other host: tcp, because nixl would emulate reads over TCP: there is no RDMA device on the host of b/0"},
		{"no library there", end("a/0", "h", all...), end("b/0", "g", "shm", "nixl!library missing", "tcp"), Memory{}, "tcp lacks tls",
			"other host: tcp, because nixl is not there on b/0: library missing"},
		{"no library here", end("a/0", "h", "shm", "nixl!library missing", "tcp"), end("b/0", "g", all...), Memory{}, "tcp lacks tls",
			"other host: tcp, because nixl is not there on a/0: library missing"},
		{"never heard of there", end("a/0", "h", all...), end("b/0", "g", "tcp"), Memory{}, "tcp lacks tls",
			"other host: tcp, because nixl is not there on b/0: it does not name it"},
		{"other library version", end("a/0", "h", "nixl=nixl/1 1.5", "tcp"), end("b/0", "g", "nixl=nixl/1 2.0", "tcp"), Memory{}, "tcp protocol tls",
			"other host: tcp, because nixl speaks nixl/1 1.5 on a/0 and nixl/1 2.0 on b/0"},
		{"nobody has it", end("a/0", "h", "shm", "tcp"), end("b/0", "g", "shm", "tcp"), Memory{}, "tcp best tls", "other host: tcp"},
		{"plain", end("a/0", "h", "tcp=plain/1"), end("b/0", "g", "tcp=plain/1"), Memory{}, "tcp best plain", "other host: tcp"},
		{"nixl alone over TCP", end("a/0", "h", "nixl"), end("b/0", "g", "nixl"), Memory{}, "nixl best ucx-tcp", "other host: nixl"},
		{"other PID namespace", end("a/0", "h", "nixl", "tcp"), with(end("b/0", "h", "nixl", "tcp"), func(p *Process) { p.PIDs = "pid:[2]" }), Memory{},
			"tcp emulated tls", "same host: tcp, because nixl would emulate reads over TCP: the two run in different PID namespaces, and CMA reads by process id"},
		{"other user", end("a/0", "h", "nixl"), with(end("b/0", "h", "nixl"), func(p *Process) { p.User = 7 }), Memory{}, "nixl best ucx-tcp", "same host: nixl"},
		{"other user who may trace, at both ends", with(end("a/0", "h", "nixl"), func(p *Process) { p.Ptrace = true }),
			with(end("b/0", "h", "nixl"), func(p *Process) { p.User, p.Ptrace = 7, true }), Memory{}, "nixl best cma", "same host: nixl"},
		{"yama", end("a/0", "h", "nixl"), with(end("b/0", "h", "nixl"), func(p *Process) { p.Yama = 3 }), Memory{}, "nixl best ucx-tcp", "same host: nixl"},
		{"nothing in common", end("a/0", "h", "nixl", "tcp!staging.transport is nixl"), end("b/0", "g", "tcp", "nixl!staging.transport is tcp"), Memory{}, " none ",
			"other host: no transport: nixl is not there on b/0: staging.transport is tcp; tcp is not there on a/0: staging.transport is nixl"},
		{"a silent peer", end("a/0", "h", all...), End{Name: "b/0", Host: "g"}, Memory{}, " none ",
			"other host: no transport: nixl is not there on b/0: it does not name it; tcp is not there on b/0: it does not name it"},
	} {
		c.check(t)
	}
}

// Both ends find the same wire, whatever they say of themselves.
func TestBothEndsAgree(t *testing.T) {
	offer := rapid.Custom(func(t *rapid.T) Offer {
		return Offer{rapid.SampledFrom([]string{Shm, NIXL, TCP, "x"}).Draw(t, "name"), rapid.SampledFrom([]string{"", "1", "plain/1"}).Draw(t, "protocol"),
			rapid.SampledFrom([]string{"", "", "why"}).Draw(t, "missing")}
	})
	side := rapid.Custom(func(t *rapid.T) End {
		return End{Name: rapid.SampledFrom([]string{"a/0", "b/1"}).Draw(t, "name"), Host: rapid.SampledFrom([]string{"", "h", "g"}).Draw(t, "host"),
			Offers: rapid.SliceOfN(offer, 0, 4).Draw(t, "offers"),
			Process: Process{PIDs: rapid.SampledFrom([]string{"", "1"}).Draw(t, "pids"), User: rapid.Uint32Range(0, 1).Draw(t, "user"), Ptrace: rapid.Bool().Draw(t, "ptrace"),
				Yama: uint8(rapid.IntRange(0, 3).Draw(t, "yama")), RDMA: rapid.Int64Range(0, 1).Draw(t, "rdma")}}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := side.Draw(t, "a"), side.Draw(t, "b")
		there, err := Wire(a, b)
		back, err2 := Wire(b, a)
		if there.Transport != back.Transport || there.Way != back.Way || there.Code != back.Code || (err == nil) != (err2 == nil) {
			t.Fatalf("%+v, %v and %+v, %v", there, err, back, err2)
		}
		if there.Why == "" || there.Transport == "" && err == nil {
			t.Fatalf("%+v, %v: no reason", there, err)
		}
	})
}

func TestExpectAndJudge(t *testing.T) {
	b := Baseline{Copy: 8e9, TLS: 1e9, TCP: 3e9, RTT: time.Millisecond}
	h, g := end("a/0", "h", "nixl", "tcp"), end("b/0", "g", "nixl", "tcp")
	fast := func(e End, n int64) End { e.Speed = n; return e }
	other := h
	other.Process.PIDs = "pid:[2]"
	tls, cma := Choice{Transport: TCP, Way: TLS}, Choice{Transport: NIXL, Way: CMA}
	for _, c := range []struct {
		name      string
		c         Choice
		own, peer End
		m         Measured
		broken    string
		expected  float64
		verdict   Verdict
		cause     string
	}{
		{"to itself", tls, h, h, Measured{Rate: 0.6e9}, "", 1e9, Good, ""},
		{"the interface is the bound", tls, fast(h, 125e6), fast(g, 1e9), Measured{Rate: 100e6}, "", 125e6, Good, ""},
		{"shaped", tls, fast(h, 125e6), fast(g, 1e9), Measured{1.2e6, 80 * time.Millisecond}, "", 125e6, Degraded, "1% of what tls should bring: one small read takes 80ms"},
		{"nobody knows the interface", tls, h, fast(g, 1e9), Measured{Rate: 1e3}, "", 0, Good, ""},
		{"late, and nobody knows the interface", tls, h, g, Measured{1e6, 41 * time.Millisecond}, "", 0, Degraded, "one small read takes 41ms"},
		{"as late as the configuration says", tls, h, g, Measured{1e6, 9 * time.Millisecond}, "", 0, Good, ""},
		{"plain", Choice{Transport: TCP, Way: Plain}, h, h, Measured{Rate: 0.1e9}, "", 3e9, Degraded, "3% of what plain should bring"},
		{"cma", cma, h, h, Measured{Rate: 2e9}, "", 2e9, Good, ""},
		{"cma that is none", cma, h, h, Measured{Rate: 0.4e9}, "", 2e9, Degraded, "20% of what cma should bring: UCX may have gone over TCP"},
		{"emulation, however fast", Choice{Transport: NIXL, Way: Emulation, Caveat: "why"}, h, other, Measured{Rate: 9e9}, "", 2e9, Degraded, "tcp emulation: why"},
		{"not measured", tls, h, h, Measured{}, "", 1e9, Unmeasured, ""},
		{"broken", tls, h, h, Measured{}, "dial: refused", 1e9, Broken, "dial: refused"},
		{"no transport", Choice{Why: "none"}, h, g, Measured{}, "", 0, Broken, "none"},
	} {
		e := Expect(c.c, c.own, c.peer, b)
		f := Judge(c.c, c.m, e, c.broken)
		if e.Rate != c.expected || (e.Against == "") != (e.Rate == 0) || f.Verdict != c.verdict || f.Cause != c.cause {
			t.Errorf("%s: expected %+v, %+v; want %.0f, %s: %s", c.name, e, f, c.expected, c.verdict, c.cause)
		}
		if (f.Fix == "") != (f.Verdict == Good || f.Verdict == Unmeasured) {
			t.Errorf("%s: %s with the remedy %q", c.name, f.Verdict, f.Fix)
		}
	}
}

// TestBrokenFix: what to do follows from the cause.
func TestBrokenFix(t *testing.T) {
	for cause, want := range map[string]string{
		"connection refused": "are all ports",
		"the wire mover of tcp did not start: write x.mark.next: no space left on device": "free some disk",
		"p/0 says: the wire mover of tcp did not start: exit status 1":                    "log of the sidecar",
	} {
		if f := Judge(Choice{Transport: TCP}, Measured{}, Expected{}, cause); f.Verdict != Broken || f.Cause != cause || !strings.Contains(f.Fix, want) {
			t.Errorf("%+v, want %q", f, want)
		}
	}
	if f := Judge(mapped(CUDAIPC), Measured{}, Expected{}, "no access between GPUs"); f.Verdict != Broken || !strings.Contains(f.Fix, "staging.transport") {
		t.Errorf("%+v", f)
	}
}
