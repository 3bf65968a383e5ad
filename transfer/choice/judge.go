package choice

import (
	"fmt"
	"strings"
	"time"
)

// Verdict is what a link is worth.
type Verdict string

const (
	Unmeasured Verdict = "unmeasured" // nothing has crossed it, or nothing is there to compare with
	Good       Verdict = "good"
	Degraded   Verdict = "degraded" // far below what its kind should do, or not of the kind that was meant
	Broken     Verdict = "broken"   // nothing can cross it
)

// Measured is what a probe found. Zero: nothing was measured.
type Measured struct {
	Rate    float64       // bytes a second of chunks in a row
	Latency time.Duration // of one small read
}

// Baseline is what a host does by itself, in bytes a second; 0: not known.
type Baseline struct {
	Copy float64 // one thread's copy of memory
	TLS  float64 // one connection to itself
	TCP  float64 // the same in clear
	// RTT is a round trip to another host, by the configuration.
	RTT time.Duration
}

// Expected is what a link should bring.
type Expected struct {
	Rate    float64       // bytes a second; 0: nothing is known to compare with
	Against string        // where Rate comes from, for people
	Latency time.Duration // of one small read, at most; 0: not known
}

// Fractions of a baseline. A wire mover's transfer passes two sockets and a pipe that the
// baseline does not, and shares the host with what it measures: a link is not called
// degraded before it does less than a quarter of what is expected.
const (
	ofCopy = 0.25
	low    = 0.25
	// tripsOfRead is how many round trips a small read may take, its server's turn included.
	tripsOfRead = 10
	// far is a read that no network of one place makes, whatever its configuration says.
	far = 5 * time.Millisecond
)

// Expect is what a link should bring, by what the ends say and this host does by itself.
func Expect(c Choice, own, peer End, b Baseline) (e Expected) {
	same := own.Host != "" && own.Host == peer.Host
	if !same && b.RTT > 0 {
		e.Latency = max(far, tripsOfRead*b.RTT)
	}
	meant := c.Way
	if meant == Emulation {
		if meant = RDMA; same {
			meant = CMA
		}
	}
	switch meant {
	case CMA:
		e.Rate, e.Against = b.Copy*ofCopy, "a quarter of a copy of memory on this host"
	case RDMA:
		e.Rate, e.Against = float64(slower(own.Process.RDMA, peer.Process.RDMA)), "the slower end's RDMA port"
	case TLS:
		e.Rate, e.Against = wired(same, b.TLS, own, peer, "TLS to itself on this host")
	case Plain:
		e.Rate, e.Against = wired(same, b.TCP, own, peer, "TCP to itself on this host")
	}
	if e.Rate == 0 {
		e.Against = ""
	}
	return e
}

// wired is what comes over a network interface. Where its speed is not known, a transfer from
// the host to itself says nothing of another host.
func wired(same bool, loopback float64, own, peer End, words string) (float64, string) {
	speed := slower(own.Speed, peer.Speed)
	switch {
	case loopback == 0:
		return 0, ""
	case same:
		return loopback, words
	case speed == 0:
		return 0, ""
	case float64(speed) < loopback:
		return float64(speed), "the slower end's network interface"
	}
	return loopback, words
}

// slower is the smaller of two speeds; 0 when one is not known.
func slower(a, b int64) int64 { return min(a, b) }

// Finding is a verdict with its cause and the remedy, for people; both empty when Good.
type Finding struct {
	Verdict    Verdict
	Cause, Fix string
}

// Judge says what a link is worth. broken is why nothing crossed it.
func Judge(c Choice, m Measured, e Expected, broken string) Finding {
	switch {
	case c.Transport == "":
		return Finding{Broken, c.Why, "set staging.transport to auto, or alike at both ends"}
	case broken != "":
		return Finding{Broken, broken, brokenFix(c, broken)}
	case c.Way == Emulation:
		return Finding{Degraded, "tcp emulation: " + c.Caveat, emulationFix(c)}
	case m.Rate == 0:
		return Finding{Verdict: Unmeasured}
	case m.Rate < low*e.Rate:
		return Finding{Degraded, slow(c, m, e), slowFix(c, m)}
	case e.Latency > 0 && m.Latency > e.Latency:
		return Finding{Degraded, fmt.Sprintf("one small read takes %v", m.Latency.Round(time.Millisecond)),
			"look for what delays or loses packets between the hosts; or set staging.rtt and staging.rate to what the network is like"}
	}
	return Finding{Verdict: Good}
}

// brokenFix goes by words: the cause may come from the peer, as text.
func brokenFix(c Choice, broken string) string {
	switch {
	case c.Maps():
		return "do what the cause says; or set staging.transport to auto, and what cannot be mapped is staged"
	case strings.Contains(broken, "no space left on device"):
		return "free some disk where the run-dir of the sidecar that says so is: a mover runs only once it is noted there"
	case strings.Contains(broken, "did not start"):
		return "look at the log of the sidecar that says so: what its wire mover said last is there"
	}
	return "look at the logs of both sidecars and their movers; are all ports of both hosts reachable from the other?"
}

func emulationFix(c Choice) string {
	return "give the two what " + c.Transport + " needs, or set staging.transport to auto: it takes tcp then, with TLS and without the other process's help"
}

func slow(c Choice, m Measured, e Expected) string {
	s := fmt.Sprintf("%.0f%% of what %s should bring", 100*m.Rate/e.Rate, c.Way)
	switch {
	case c.Way == CMA:
		return s + ": UCX may have gone over TCP"
	case m.Latency > far:
		return s + fmt.Sprintf(": one small read takes %v", m.Latency.Round(time.Millisecond))
	}
	return s
}

func slowFix(c Choice, m Measured) string {
	switch {
	case c.Way == CMA || c.Way == RDMA:
		return "see what UCX chose: start the sidecar with UCX_PROTO_INFO=y and UCX_LOG_LEVEL=info"
	case m.Latency > far:
		return "look for loss and for a shaper between the hosts, and raise net.ipv4.tcp_rmem and tcp_wmem for a long way"
	}
	return "measure again while the hosts are idle; then look at the interface's speed, and for a shaper between the hosts"
}
