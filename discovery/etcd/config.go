package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/batonkv/baton/internal/tlsfile"
)

// ErrConfig is a fault of a Config; its text names the field and the remedy.
var ErrConfig = errors.New("etcd config")

// Defaults and bounds of the times.
const (
	DefaultDialTimeout = 5 * time.Second
	DefaultTTL         = 10 * time.Second
	MinTTL             = time.Second
	MaxTTL             = 10 * time.Minute
	maxEndpoints       = 16
)

// Config is the etcd section of a configuration.
type Config struct {
	Endpoints   []string      `yaml:"endpoints" help:"URLs of etcd, such as http://127.0.0.1:2379"`
	DialTimeout time.Duration `yaml:"dial-timeout" help:"how long etcd may take to answer a connection or a request"`
	TTL         time.Duration `yaml:"ttl" help:"how long the registration outlives its process, in whole seconds"`
	TLS         tlsfile.Files `yaml:"tls"`
	User        string        `yaml:"user" help:"etcd user"`
	Password    string        `yaml:"password" help:"password of the etcd user; the file keeps it out of the process list"`
	Token       string        `yaml:"token" help:"JWT for etcd, instead of user and password"`

	// Alive says whether the process of this host that has pid and start time lives;
	// nil takes every process for alive, so a dead one's rank waits for its expiry.
	Alive func(pid int32, started uint64) bool `yaml:"-"`
	// Log tells of records that watchers pass over; nil is silent.
	Log *slog.Logger `yaml:"-"`
}

// Default is a Config that lacks only the endpoints.
func Default() Config {
	return Config{DialTimeout: DefaultDialTimeout, TTL: DefaultTTL}
}

// Check says every fault, each with its field and remedy; the errors are ErrConfig.
func (c Config) Check() error {
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...)))
	}
	if n := len(c.Endpoints); n == 0 || n > maxEndpoints {
		fault("endpoints: %d given; want 1 to %d, such as http://127.0.0.1:2379", n, maxEndpoints)
	}
	secure := 0
	for i, e := range c.Endpoints {
		u, err := url.Parse(e)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || !hostPort(u.Host) || strings.Trim(u.Path, "/") != "" {
			fault("endpoints[%d]: %q: want http://host:port or https://host:port", i, e)
			continue
		}
		if u.Scheme == "https" {
			secure++
		}
	}
	if secure > 0 && secure < len(c.Endpoints) {
		fault("endpoints: some are https and some http: want all of one kind")
	}
	if secure == 0 && c.TLS.Set() {
		fault("tls: is given and the endpoints are http: want https endpoints, or no tls")
	}
	if err := c.TLS.Check(); err != nil {
		fault("tls.%s", strings.TrimPrefix(err.Error(), tlsfile.ErrFile.Error()+": "))
	}
	if c.DialTimeout <= 0 || c.DialTimeout > time.Minute {
		fault("dial-timeout: %v: want more than 0 to 1m, such as %v", c.DialTimeout, DefaultDialTimeout)
	}
	if c.TTL < MinTTL || c.TTL > MaxTTL || c.TTL%time.Second != 0 {
		fault("ttl: %v: want whole seconds, %v to %v", c.TTL, MinTTL, MaxTTL)
	}
	if (c.User == "") != (c.Password == "") {
		fault("user: goes with password: give both or neither")
	}
	if c.Token != "" && c.User != "" {
		fault("token: user is given too: want one way to sign in")
	}
	return errors.Join(errs...)
}

func hostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	return err == nil && host != "" && port != ""
}
