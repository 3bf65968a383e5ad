package sidecar

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/transfer/choice"
)

// Protocols of what this program moves bytes by; a change that the other end would not
// understand changes the number.
const (
	shmProtocol   = "memfd/1"
	gpuProtocol   = "cuda-ipc/1"
	tcpProtocol   = "tls/1"
	plainProtocol = "plain/1"
)

// end is what this sidecar tells its peers of how it can be read.
// noNIXL is why that cannot be used.
func end(s config.Staging, addr string, noNIXL error) choice.End {
	stream := choice.Offer{Name: choice.TCP, Protocol: tcpProtocol}
	if s.Transport == config.TCPPlain {
		stream.Protocol = plainProtocol
	}
	lib := choice.Offer{Name: choice.NIXL, Protocol: nixlProtocol(s.NIXL)}
	if noNIXL != nil {
		lib.Missing = brief(noNIXL)
	}
	e := choice.End{Offers: []choice.Offer{{Name: choice.Shm, Protocol: shmProtocol}, {Name: choice.CUDAIPC, Protocol: gpuProtocol}, stream, lib}, Process: process(), Speed: speed(s, addr)}
	for i, o := range e.Offers {
		if o.Missing == "" {
			e.Offers[i].Missing = unwanted(s, o.Name)
		}
	}
	return e
}

// maxReason is what peers take of a text, and less, in bytes.
const maxReason = 240

// brief is the first line of an error.
func brief(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.ToValidUTF8(line[:min(len(line), maxReason)], "")
}

// unwanted is why the configuration leaves a transport out.
func unwanted(s config.Staging, name string) string {
	maps := choice.Choice{Transport: name}.Maps()
	switch {
	case maps && s.When == config.Always:
		return "staging.when is " + s.When
	case maps, s.Transport == config.Auto, s.Transport == name, s.Transport == config.TCPPlain && name == choice.TCP:
		return ""
	}
	return "staging.transport is " + s.Transport
}

// names are those of what e has, as discovery hears them.
func names(e choice.End) (out []string) {
	for _, o := range e.Offers {
		if o.Missing == "" {
			out = append(out, o.Name)
		}
	}
	return out
}

// process is what the kernel lets the movers of this sidecar do.
func process() choice.Process {
	p := choice.Process{User: uint32(os.Getuid()), Ptrace: capable(capPtrace), RDMA: rdma()}
	p.PIDs, _ = os.Readlink("/proc/self/ns/pid")
	if n, err := strconv.ParseUint(read("/proc/sys/kernel/yama/ptrace_scope"), 10, 8); err == nil {
		p.Yama = uint8(n)
	}
	return p
}

// read is a small file's text; empty when it cannot be read.
func read(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// capPtrace is CAP_SYS_PTRACE.
const capPtrace = 19

// capable reports whether this process has a capability in effect.
func capable(n uint) bool {
	for line := range strings.Lines(read("/proc/self/status")) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return err == nil && set>>n&1 == 1
		}
	}
	return false
}

// rdma is the rate of the host's fastest RDMA port that is up.
func rdma() (best int64) {
	ports, _ := filepath.Glob("/sys/class/infiniband/*/ports/*")
	for _, port := range ports {
		var gbits float64
		if _, err := fmt.Sscanf(read(port+"/rate"), "%g", &gbits); err == nil && strings.Contains(read(port+"/state"), "ACTIVE") {
			best = max(best, int64(gbits*1e9/8))
		}
	}
	return best
}

// speed is what the configuration says that the network gives, if that was set, or else what
// its interface says.
func speed(s config.Staging, addr string) int64 {
	if s.Rate != config.Default().Staging.Rate {
		return int64(s.Rate) * 1e6
	}
	return speedAt(addr)
}

// speedAt is the speed of the interface that has the address of addr, host:port; 0: not known.
func speedAt(addr string) int64 {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	all, err2 := net.Interfaces()
	if err != nil || err2 != nil || ip == nil {
		return 0
	}
	for _, i := range all {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); !ok || !n.IP.Equal(ip) {
				continue
			}
			mbits, err := strconv.ParseInt(read("/sys/class/net/"+i.Name+"/speed"), 10, 32)
			if err != nil || mbits < 1 {
				return 0
			}
			return mbits * 1e6 / 8
		}
	}
	return 0
}
