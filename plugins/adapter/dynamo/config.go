package dynamo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"go.yaml.in/yaml/v3"

	"github.com/batonkv/baton/discovery/etcd"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/events/nats"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Config is the adapter's section.
type Config struct {
	Namespace string      `yaml:"namespace"` // of the deployment, as its workers have it
	Component string      `yaml:"component"` // baton
	Discovery string      `yaml:"discovery"` // etcd or file, as DYN_DISCOVERY_BACKEND
	Etcd      etcd.Config `yaml:"etcd"`
	Folder    string      `yaml:"folder"`        // of discovery file, as DYN_FILE_KV
	Plane     string      `yaml:"request-plane"` // tcp or nats, as DYN_REQUEST_PLANE
	Listen    string      `yaml:"listen"`        // ip:port; port 0 is a free one
	Advertise string      `yaml:"advertise"`     // ip that clients dial; that of listen
	CallHome  []string    `yaml:"call-home"`     // networks whose addresses callers may name
	Calls     int         `yaml:"calls"`         // at once
	Waiting   int         `yaml:"waiting"`       // of await and watch at once, beside calls
	Requests  int         `yaml:"requests"`      // MiB that requests hold together
	Codec     string      `yaml:"codec"`         // msgpack or json
	NATS      nats.Config `yaml:"nats"`          // of the event plane, and of request plane nats; without URLs no events are told
	KV        KV          `yaml:"kv"`

	homes     []netip.Prefix
	advertise netip.Addr
}

// Bounds of Config.
const (
	maxCalls = 1024
	maxWaits = 1 << 14
	maxBytes = 1 << 14 // MiB
	maxHomes = 64
)

// ParseConfig reads and checks a section: handoff.ErrSection names every fault.
func ParseConfig(section []byte) (Config, error) {
	c := Config{Component: "baton", Discovery: "etcd", Plane: "tcp", Listen: "127.0.0.1:0", Calls: 256, Waiting: 1024, Requests: 256, Codec: "msgpack", Etcd: etcd.Default(), NATS: nats.Default()}
	d := yaml.NewDecoder(bytes.NewReader(section))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("%w: %w", handoff.ErrSection, err)
	}
	if errs := c.check(); len(errs) > 0 {
		return c, fmt.Errorf("%w: %w", handoff.ErrSection, errors.Join(errs...))
	}
	return c, nil
}

func (c *Config) check() (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := c.Endpoint("handoff").Check(); err != nil {
		fault("namespace, component: %w", err)
	}
	switch c.Discovery {
	case "etcd":
		if err := c.Etcd.Check(); err != nil {
			fault("etcd: %w", err)
		}
		if c.Folder != "" {
			fault("folder: is given, and discovery is etcd: remove it, or want discovery: file")
		}
	case "file":
		if !strings.HasPrefix(c.Folder, "/") {
			fault("folder: %q: want the absolute path that DYN_FILE_KV has", c.Folder)
		}
	default:
		fault("discovery: %q: want etcd or file", c.Discovery)
	}
	at, err := netip.ParseAddrPort(c.Listen)
	if err != nil {
		fault("listen: %q: want ip:port, such as 10.0.0.5:0, with a port of 0 to 65535: Dynamo's clients dial no host names", c.Listen)
	}
	c.advertise = at.Addr()
	if c.Advertise != "" {
		if c.advertise, err = netip.ParseAddr(c.Advertise); err != nil {
			fault("advertise: %q: want an ip, such as 10.0.0.5", c.Advertise)
		}
	}
	if c.advertise.IsUnspecified() {
		fault("advertise: listen is on every address of this host: want the ip that clients dial")
	}
	if len(c.CallHome) > maxHomes {
		fault("call-home: %d networks, at most %d", len(c.CallHome), maxHomes)
	}
	for _, s := range c.CallHome {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			fault("call-home: %q: want a network, such as 10.0.0.0/8", s)
		}
		c.homes = append(c.homes, p)
	}
	if err := c.NATS.Check(); err != nil {
		fault("nats: %w", err)
	}
	if err := errors.Join(c.checkKV(), c.checkPlane()); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, c.bounds()...)
	if codec, err := wire.ParseCodec(c.Codec); err != nil || c.Codec == "" {
		fault("codec: %q: want msgpack or json", c.Codec)
	} else {
		c.Codec = codec.String()
	}
	return errs
}

func (c *Config) checkPlane() error {
	switch {
	case c.Plane != "tcp" && c.Plane != "nats":
		return fmt.Errorf("request-plane: %.20q: want tcp or nats, as DYN_REQUEST_PLANE", c.Plane)
	case c.Plane == "nats" && len(c.NATS.URLs) == 0:
		return errors.New("request-plane: nats: want nats.urls, or tcp, which needs no server")
	}
	return nil
}

// bounds checks the counts.
func (c *Config) bounds() (errs []error) {
	for _, n := range []struct {
		key          string
		is, from, to int
	}{{"calls", c.Calls, 1, maxCalls}, {"waiting", c.Waiting, 1, maxWaits}, {"requests", c.Requests, wire.MaxMessage >> 20, maxBytes}} {
		if n.is < n.from || n.is > n.to {
			errs = append(errs, fmt.Errorf("%s: %d: want %d to %d", n.key, n.is, n.from, n.to))
		}
	}
	return errs
}

// Endpoint is one of the component.
func (c *Config) Endpoint(name string) directory.Endpoint {
	return directory.Endpoint{Namespace: c.Namespace, Component: c.Component, Name: name}
}

// Open opens the directory. look is how often records are looked after.
func (c *Config) Open() (b directory.Backend, look time.Duration, err error) {
	if c.Discovery == "file" {
		b, err = directory.OpenFiles(c.Folder)
		return b, time.Second, err
	}
	b, err = directory.OpenEtcd(c.Etcd)
	return b, max(c.Etcd.TTL/3, time.Second), err
}

// Serve starts a server, and gives the ip:port that clients dial, "" when they call over NATS.
func (c *Config) Serve(log *slog.Logger) (s *plane.Server, addr string, err error) {
	p := plane.Config{Listen: c.Listen, Calls: c.Calls, Waiting: c.Waiting, Bytes: int64(c.Requests) << 20, Homes: c.homes, Log: log}
	if p.NATS, err = c.planeNATS(); err != nil {
		return nil, "", err
	}
	if s, err = plane.Serve(p); err == nil && p.NATS == nil {
		addr = c.Told(s.Addr().Port()).String()
	}
	return s, addr, err
}

// Client is one that calls others over the same request plane. It listens for their answers.
func (c *Config) Client() (*plane.Client, error) {
	at := netip.MustParseAddrPort(c.Listen) // check has parsed it
	nc, err := c.planeNATS()
	if err != nil {
		return nil, err
	}
	client, err := plane.NewClient(netip.AddrPortFrom(at.Addr(), 0).String(), plane.OverNATS(nc, c.advertise))
	if err != nil && nc != nil {
		nc.Close()
	}
	return client, err
}

// planeNATS connects for calls over NATS; nil when they go over TCP.
func (c *Config) planeNATS() (*natsgo.Conn, error) {
	if c.Plane != "nats" {
		return nil, nil
	}
	nc, err := c.NATS.Connect()
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	return nc, nil
}

// Told is where others of the deployment dial a port of this process.
func (c *Config) Told(port uint16) netip.AddrPort { return netip.AddrPortFrom(c.advertise, port) }

// NewID is an instance id: below 2^53, so that JSON readers that round do not make another
// of it.
func NewID() uint64 { return rand.Uint64()>>11 | 1 }
