// Package config is how a sidecar, and what calls sidecars, is configured: one YAML file
// and flags of the same names, the file first. Everything is checked before anything opens, and every fault
// names its field and the remedy. Each backend owns its section; only cmd imports this
// package.
package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/etcd"
	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/sidecar/events/nats"
	"github.com/batonkv/baton/transfer/staged/nixl"
	"github.com/batonkv/baton/transfer/sums"
)

// Sidecar is the configuration of `baton sidecar`. A key's name is the yaml tag; keys
// of sections are joined by a dot, in flags as well: --etcd.endpoints.
type Sidecar struct {
	Cluster string         `yaml:"cluster" help:"cluster: one etcd prefix and one CA"`
	Pool    string         `yaml:"pool" help:"pool: groups that may pair, usually of one model"`
	Group   string         `yaml:"group" help:"group: one engine instance"`
	Rank    int32          `yaml:"rank" help:"rank of the engine's worker in its group, from 0"`
	Role    discovery.Role `yaml:"role" help:"what the group does: prefill, decode or both"`
	Tenant  string         `yaml:"tenant" help:"tenant: sidecars of another tenant are refused"`

	Host      string `yaml:"host" help:"id of this host: memory is mapped between sidecars that have the same (default: one that the running kernel gives)"`
	RunDir    string `yaml:"run-dir" help:"absolute path of the directory for sockets, made with mode 0700"`
	Listen    string `yaml:"listen" help:"host:port for peers and control planes; port 0 takes a free one"`
	Advertise string `yaml:"advertise" help:"host:port that others dial (default: what listen bound; needed where that is 0.0.0.0 or [::])"`
	Metrics   string `yaml:"metrics" help:"host:port of /metrics and /healthz; empty serves none"`

	Etcd etcd.Config `yaml:"etcd"`
	NATS nats.Config `yaml:"nats"`
	TLS  certs.Files `yaml:"tls"`

	Lease    time.Duration `yaml:"lease" help:"how long a hand-off is held for importers"`
	MaxHold  time.Duration `yaml:"max-hold" help:"the most that an engine's own max_hold, or a pin without a lease, is held"`
	Deadline time.Duration `yaml:"deadline" help:"how long an import may take when its request names no deadline"`
	Verify   string        `yaml:"verify" help:"sum up exports and compare imports with the sums that come: off, sample, all; all refuses an import that brings less"`
	Limits   Limits        `yaml:"limits"`
	Staging  Staging       `yaml:"staging"`

	// Adapters speak for the group to control planes; rank 0's sidecar alone has them.
	Adapters []Adapter `yaml:"-"`

	LogLevel  string `yaml:"log-level" help:"how much to log: debug, info, warn, error"`
	LogFormat string `yaml:"log-format" help:"how to log: text, json"`
}

// Limits bound what others can make a sidecar hold.
type Limits struct {
	Imports int32 `yaml:"imports" help:"imports that may wait or run at once"`
	Exports int32 `yaml:"exports" help:"hand-offs that may be held for importers at once"`
	Peers   int32 `yaml:"peers" help:"peer sessions that may be open at once"`
	Queue   int32 `yaml:"queue" help:"messages that may wait for one session"`
}

// Staging is how a sidecar reads from ranks whose memory it cannot map: those of other hosts.
type Staging struct {
	Transport string `yaml:"transport" help:"what brings bytes from other hosts: auto, nixl, tcp, tcp-plain, or none; auto takes the best that both ends have; tcp is with TLS, tcp-plain without: for networks where nobody else listens, and both hosts have to say so"`
	When      string `yaml:"when" help:"remote: stage what comes from other hosts; always: what comes from this one too, whose memory could be mapped"`

	Arena int32         `yaml:"arena" help:"MiB of staging memory for each direction, 1 to 4096"`
	Peers int32         `yaml:"peers" help:"sidecars of other hosts that send or receive at once, which the memory is cut for"`
	Rate  int32         `yaml:"rate" help:"MB/s that the network gives"`
	RTT   time.Duration `yaml:"rtt" help:"round trip to another host"`
	Chunk int32         `yaml:"chunk" help:"KiB of a chunk, of which both ends take the smaller: a multiple of 4, at most 65536 and the arena; 0: what the above make best"`
	Depth int32         `yaml:"depth" help:"chunks that one of them may hold, 1 to 64; 0: what the above make best"`
	// Connections are of each pair of wire movers and direction.
	Connections int32 `yaml:"connections" help:"TCP connections to each peer that is read from, 1 to 64; 0: 2 to 4, by the processors of this machine"`

	NIXL nixl.Options `yaml:"nixl"`
}

// Transports of Staging.
const (
	Auto      = "auto"      // the best that both ends have
	NIXL      = "nixl"      // side connections with TLS; the bytes as its backend moves them, which may be in clear
	TCP       = "tcp"       // TLS 1.3 with the sidecars' certificates
	TCPPlain  = "tcp-plain" // anybody on the network may read and change what travels
	NoStaging = "none"
)

// When of Staging.
const (
	Remote = "remote"
	Always = "always"
)

// Bounds of Staging.
const (
	maxArena = 4096     // MiB
	maxChunk = 64 << 10 // KiB
)

func (f *faults) staging(s Staging) {
	if ways := []string{Auto, NIXL, TCP, TCPPlain, NoStaging}; !slices.Contains(ways, s.Transport) {
		f.add("staging.transport", "%q: %s", s.Transport, want(s.Transport, ways))
	}
	f.section("staging.nixl", nixl.ErrConfig, s.NIXL.Check())
	if s.When != Remote && s.When != Always {
		f.add("staging.when", "%q: want %s or %s", s.When, Remote, Always)
	}
	if s.Transport == NoStaging && s.When == Always {
		f.add("staging.when", "is %s and staging.transport is %s: nothing could be read", Always, NoStaging)
	}
	for _, n := range []struct {
		name      string
		v, lo, hi int32
	}{{"arena", s.Arena, 1, maxArena}, {"peers", s.Peers, 1, 1024}, {"rate", s.Rate, 1, 1 << 20}, {"depth", s.Depth, 0, 64}, {"connections", s.Connections, 0, 64}} {
		if n.v < n.lo || n.v > n.hi {
			f.add("staging."+n.name, "%d: want %d to %d", n.v, n.lo, n.hi)
		}
	}
	if s.RTT < 0 || s.RTT > 10*time.Second {
		f.add("staging.rtt", "%v: want 0 to 10s", s.RTT)
	}
	switch {
	case s.Chunk < 0 || s.Chunk > maxChunk || s.Chunk%4 != 0:
		f.add("staging.chunk", "%d: want a multiple of 4, 0 to %d", s.Chunk, maxChunk)
	case s.Arena >= 1 && s.Arena <= maxArena && s.Chunk > s.Arena<<10:
		f.add("staging.chunk", "%d KiB are more than staging.arena, %d MiB: want no more", s.Chunk, s.Arena)
	}
}

// maxLimit bounds every limit.
const maxLimit = 1 << 20

// Default is a Sidecar that lacks its names, etcd's endpoints and the certificates.
// Times and bounds are those of package machine, which a test compares.
func Default() Sidecar {
	return Sidecar{
		Tenant: "default", Role: discovery.Both, RunDir: "/run/baton", Listen: "127.0.0.1:0",
		Etcd: etcd.Default(), NATS: nats.Default(),
		Lease: 30 * time.Second, MaxHold: 5 * time.Minute, Deadline: 30 * time.Second, Verify: sums.Off.String(),
		Limits:   Limits{Imports: 1024, Exports: 4096, Peers: 1024, Queue: 1024},
		Staging:  Staging{Transport: Auto, When: Remote, Arena: 64, Peers: 2, Rate: 12500, RTT: 200 * time.Microsecond, NIXL: nixl.DefaultOptions()},
		LogLevel: "info", LogFormat: "text",
	}
}

// Check says every fault, each with its field and remedy; the errors are ErrConfig.
func (c Sidecar) Check() error {
	var f faults
	f.names(c)
	f.addr("listen", c.Listen, true)
	f.addr("advertise", c.Advertise, false)
	f.addr("metrics", c.Metrics, true)
	if _, err := sums.ParseMode(c.Verify); err != nil {
		f.add("verify", "%v", err)
	}
	if c.Listen == "" {
		f.add("listen", "is empty: want host:port, such as 127.0.0.1:0")
	}
	if c.Advertise == "" && wildcard(c.Listen) {
		f.add("advertise", "is empty and listen, %q, is every address of the host: name the host:port that others dial", c.Listen)
	}
	if c.Advertise != "" && wildcard(c.Advertise) {
		f.add("advertise", "%q: nobody can dial every address: name one of this host, such as 10.0.0.7:7070", c.Advertise)
	}
	switch {
	case c.RunDir == "":
		f.add("run-dir", "is empty: name a directory for the sockets")
	case !filepath.IsAbs(c.RunDir):
		f.add("run-dir", "%q: want an absolute path, such as /run/baton", c.RunDir)
	}
	if len(c.RunDir) > maxRunDir {
		f.add("run-dir", "%d bytes: a socket's path is at most 107, so want at most %d", len(c.RunDir), maxRunDir)
	}
	f.section("etcd", etcd.ErrConfig, c.Etcd.Check())
	f.section("nats", nats.ErrConfig, c.NATS.Check())
	f.section("tls", certs.ErrCert, c.TLS.Check())
	f.times(c)
	for _, l := range []struct {
		field string
		n     int32
	}{
		{"limits.imports", c.Limits.Imports}, {"limits.exports", c.Limits.Exports},
		{"limits.peers", c.Limits.Peers}, {"limits.queue", c.Limits.Queue},
	} {
		if l.n < 1 || l.n > maxLimit {
			f.add(l.field, "%d: want 1 to %d", l.n, maxLimit)
		}
	}
	f.staging(c.Staging)
	f.adapters(c.Adapters)
	if err := checkLog(c.LogLevel, c.LogFormat); err != nil {
		f = append(f, err)
	}
	return errors.Join(f...)
}

// maxRank is what sidecars agree to: a group has 1024 ranks at most.
const maxRank = 1023

// maxRunDir leaves room for "/engine.fd.sock" in the 107 bytes of a socket's path.
const maxRunDir = 90

// faults collects what is wrong.
type faults []error

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
}

// section takes over the faults that a section found in itself, joined, each of which
// begins with own: the section's name takes its place.
func (f *faults) section(name string, own, err error) {
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return
	}
	for _, e := range many.Unwrap() {
		text := strings.TrimPrefix(strings.TrimPrefix(e.Error(), own.Error()+": "), name+".")
		*f = append(*f, &sectionError{fmt.Sprintf("%v: %s.%s", ErrConfig, name, text), e})
	}
}

// sectionError is a section's fault in the words of the whole configuration.
type sectionError struct {
	text  string
	cause error
}

func (e *sectionError) Error() string   { return e.text }
func (e *sectionError) Unwrap() []error { return []error{ErrConfig, e.cause} }

func (f *faults) names(c Sidecar) {
	for _, n := range []struct{ field, value string }{
		{"cluster", c.Cluster}, {"pool", c.Pool}, {"group", c.Group}, {"tenant", c.Tenant},
	} {
		f.name(n.field, n.value)
	}
	if c.Host != "" {
		f.name("host", c.Host)
	}
	if c.Rank < 0 || c.Rank > maxRank {
		f.add("rank", "%d: want 0 to %d", c.Rank, maxRank)
	}
	switch c.Role {
	case discovery.Prefill, discovery.Decode, discovery.Both:
	default:
		f.add("role", "%q: %s", c.Role, want(string(c.Role), []string{"prefill", "decode", "both"}))
	}
}

// wildcard says whether addr is no one address that others could dial.
func wildcard(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// addr checks host:port where it is given; port 0 is for those that are listened on.
func (f *faults) addr(field, addr string, listen bool) {
	if addr == "" {
		return
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		f.add(field, "%q: want host:port", addr)
		return
	}
	n, err := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil:
		f.add(field, "%q: want a port of 0 to 65535", addr)
	case !listen && n == 0:
		f.add(field, "%q: want the port that others dial, not 0", addr)
	case !listen && host == "":
		f.add(field, "%q: want the host that others dial", addr)
	}
}

func (f *faults) times(c Sidecar) {
	for _, d := range []struct {
		field string
		d     time.Duration
	}{{"lease", c.Lease}, {"max-hold", c.MaxHold}, {"deadline", c.Deadline}} {
		if d.d < time.Millisecond || d.d > 24*time.Hour {
			f.add(d.field, "%v: want 1ms to 24h, such as 30s", d.d)
		}
	}
	if c.MaxHold < c.Lease {
		f.add("max-hold", "%v is shorter than lease, %v: want at least that", c.MaxHold, c.Lease)
	}
}
