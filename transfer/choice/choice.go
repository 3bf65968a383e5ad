// Package choice decides by which transport a rank reads from another, and says why in
// words. It is pure: both ends compute it from what each says of itself, and find the same.
//
// Invariant: Wire(a, b) and Wire(b, a) choose the same transport.
package choice

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNone reports two ends that have no transport in common.
var ErrNone = errors.New("choice: no transport in common")

// Names of transports.
const (
	Shm     = "shm"     // memory of the same host is mapped
	CUDAIPC = "cudaipc" // GPU memory of the same host is mapped
	NIXL    = "nixl"    // staging over NIXL
	TCP     = "tcp"     // staging over TCP
)

// order is that of transports which move chunks, the preferred one first.
var order = [...]string{NIXL, TCP}

// Offer is what an end says of one transport.
type Offer struct {
	Name     string
	Protocol string // of its wire, version included: both ends need the same
	Missing  string // why this end cannot use it; empty: it can
}

// Process is what decides how a library reaches another process's memory.
type Process struct {
	PIDs   string // identity of its PID namespace; empty: not known
	User   uint32
	Ptrace bool  // it may trace processes of other users
	Yama   uint8 // the kernel's ptrace_scope; 0 where there is none
	RDMA   int64 // bytes a second of the fastest RDMA port of its host; 0: none
}

// End is what one sidecar says of itself.
type End struct {
	Name    string // "group/rank", for people
	Host    string // equal on one host only
	Offers  []Offer
	Process Process
	Speed   int64 // bytes a second of the interface that peers reach it by; 0: not known
}

// Code is why a transport was chosen, for programs.
type Code string

const (
	Mapped   Code = "mapped"   // same host: memory is mapped
	Best     Code = "best"     // nothing better is known to both ends
	Lacks    Code = "lacks"    // an end lacks a better one
	Protocol Code = "protocol" // the ends speak different protocols of a better one
	Emulated Code = "emulated" // a better one would emulate reads over TCP
	Unmapped Code = "unmapped" // same host, and yet its memory could not be mapped
	Mixed    Code = "mixed"    // same host, one end on a GPU and the other not
	None     Code = "none"     // there is none
)

// Fallback reports whether something better was passed over.
func (c Code) Fallback() bool {
	return c != Mapped && c != Best && c != Mixed
}

// Way is how the bytes of a transport travel.
type Way string

const (
	Copy       Way = "copy"        // by the CPU, between mapped memory
	CopyEngine Way = "copy-engine" // by a GPU's copy engines, between mapped memory
	TLS        Way = "tls"         // TCP with TLS 1.3
	Plain      Way = "plain"       // TCP in clear
	CMA        Way = "cma"         // one process reads the other's memory
	RDMA       Way = "rdma"        // a network adapter does
	Emulation  Way = "ucx-tcp"     // UCX emulates reads over TCP, and needs the other process for that
	Unknown    Way = "not-known"   // of a transport that this release does not know
)

// Choice is how a rank reads from another.
type Choice struct {
	Transport string // empty: none
	Code      Code
	Why       string // in words
	Way       Way
	Caveat    string // why Way is not what the transport is for; empty: it is
}

// Maps reports whether the peer's memory is mapped, and not staged.
func (c Choice) Maps() bool { return c.Transport == Shm || c.Transport == CUDAIPC }

// Choose says how own reads from peer, by what is known of their memory.
func Choose(own, peer End, m Memory) (Choice, error) {
	same := own.Host != "" && own.Host == peer.Host
	name, why := m.mapping()
	kind := Mixed
	if why == "" {
		why, kind = lack(own, peer, own.offer(name), peer.offer(name))
	}
	if same && why == "" && m.Unmapped == "" {
		return mapped(name), nil
	}
	unmapped := m.Unmapped
	if why != "" && kind != None {
		unmapped = why
	}
	c, err := Wire(own, peer)
	if same && unmapped != "" {
		c.Why += "; its memory is not mapped: " + unmapped
		switch {
		case err != nil:
			err = fmt.Errorf("%w; its memory is not mapped: %s", err, unmapped)
		case kind == Mixed:
			c.Code = Mixed
		case why == "":
			c.Code = Unmapped
		}
	}
	return c, err
}

// Wire says which transport moves chunks between two ends. The error is ErrNone.
func Wire(own, peer End) (Choice, error) {
	var passed []string
	code := Best
	for i, name := range order {
		why, kind := lack(own, peer, own.offer(name), peer.offer(name))
		if why != "" {
			if kind != None {
				passed, code = append(passed, why), worse(code, kind)
			}
			continue
		}
		c := Choice{Transport: name, Code: code, Why: where(own, peer) + ": " + name}
		c.Way, c.Caveat = way(name, own, peer)
		if c.Way == Emulation && usable(own, peer, order[i+1:]) {
			passed, code = append(passed, name+" would emulate reads over TCP: "+c.Caveat), worse(code, Emulated)
			continue
		}
		if len(passed) > 0 {
			c.Why += ", because " + strings.Join(passed, "; ")
		}
		return c, nil
	}
	if len(passed) == 0 {
		passed = []string{"neither end names one"}
	}
	why := strings.Join(passed, "; ")
	return Choice{Code: None, Why: where(own, peer) + ": no transport: " + why},
		fmt.Errorf("%w between %s and %s: %s: set staging.transport to auto, or alike at both ends", ErrNone, own.Name, peer.Name, why)
}

// worse keeps the first code that says why something was passed over.
func worse(now, next Code) Code {
	if now == Best {
		return next
	}
	return now
}

func where(own, peer End) string {
	if own.Host != "" && own.Host == peer.Host {
		return "same host"
	}
	return "other host"
}

func usable(own, peer End, names []string) bool {
	for _, n := range names {
		if why, _ := lack(own, peer, own.offer(n), peer.offer(n)); why == "" {
			return true
		}
	}
	return false
}

func (e End) offer(name string) *Offer {
	for i := range e.Offers {
		if e.Offers[i].Name == name {
			return &e.Offers[i]
		}
	}
	return nil
}

// lack says why two ends cannot use a transport together. None: neither has heard of it.
func lack(own, peer End, o, p *Offer) (string, Code) {
	switch {
	case o == nil && p == nil:
		return "neither end names it", None
	case o == nil:
		return p.Name + " is not there on " + own.Name + ": it does not name it", Lacks
	case o.Missing != "":
		return o.Name + " is not there on " + own.Name + ": " + o.Missing, Lacks
	case p == nil:
		return o.Name + " is not there on " + peer.Name + ": it does not name it", Lacks
	case p.Missing != "":
		return o.Name + " is not there on " + peer.Name + ": " + p.Missing, Lacks
	case o.Protocol != p.Protocol:
		return fmt.Sprintf("%s speaks %s on %s and %s on %s", o.Name, o.Protocol, own.Name, p.Protocol, peer.Name), Protocol
	}
	return "", ""
}

// way says how the bytes of a transport travel between two ends that have it.
func way(name string, own, peer End) (Way, string) {
	switch name {
	case TCP:
		if strings.HasPrefix(own.offer(TCP).Protocol, string(Plain)) {
			return Plain, ""
		}
		return TLS, ""
	case NIXL:
		return nixlWay(own, peer)
	}
	return Unknown, ""
}

// nixlWay is what UCX uses for reads of host memory: an RDMA adapter, or the kernel's copy
// between two processes of one host, or else messages over TCP.
func nixlWay(own, peer End) (Way, string) {
	if own.Host == "" || own.Host != peer.Host {
		for _, e := range []End{own, peer} {
			if e.Process.RDMA == 0 {
				return Emulation, "there is no RDMA device on the host of " + e.Name
			}
		}
		return RDMA, ""
	}
	a, b := own.Process, peer.Process
	switch {
	case a.PIDs == "" || b.PIDs == "":
		return Emulation, "a PID namespace is not known, and CMA reads by process id"
	case a.PIDs != b.PIDs:
		return Emulation, "the two run in different PID namespaces, and CMA reads by process id"
	case a.User != b.User && !(a.Ptrace && b.Ptrace):
		return Emulation, fmt.Sprintf("the two run as users %d and %d, and CMA needs the right to trace the other", a.User, b.User)
	case max(a.Yama, b.Yama) >= 2 && !(a.Ptrace && b.Ptrace):
		return Emulation, fmt.Sprintf("kernel.yama.ptrace_scope is %d, and CMA needs the right to trace the other", max(a.Yama, b.Yama))
	}
	return CMA, ""
}
