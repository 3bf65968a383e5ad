package nats

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/batonkv/baton/internal/tlsfile"
)

// ErrConfig is a fault of a Config; its text names the field and the remedy.
var ErrConfig = errors.New("nats config")

// Defaults and bounds.
const (
	DefaultQueue         = 1024
	DefaultTimeout       = 2 * time.Second
	DefaultReconnectWait = time.Second
	maxQueue             = 1 << 20
	maxURLs              = 16
)

// Config is the nats section of a configuration.
type Config struct {
	URLs          []string      `yaml:"urls" help:"URLs of NATS, such as nats://127.0.0.1:4222; none sends no events"`
	TLS           tlsfile.Files `yaml:"tls"`
	User          string        `yaml:"user" help:"NATS user"`
	Password      string        `yaml:"password" help:"password of the NATS user; the file keeps it out of the process list"`
	Token         string        `yaml:"token" help:"NATS token"`
	NKeySeed      string        `yaml:"nkey-seed" help:"file with the seed of a user nkey"`
	Credentials   string        `yaml:"credentials" help:"NATS credentials file (.creds)"`
	Queue         int32         `yaml:"queue" help:"events that may wait for NATS; more are dropped and counted"`
	Timeout       time.Duration `yaml:"timeout" help:"how long NATS may take to answer a connection"`
	ReconnectWait time.Duration `yaml:"reconnect-wait" help:"pause between two tries to reach NATS"`

	// Log tells of lost and found connections; nil is silent.
	Log *slog.Logger `yaml:"-"`
}

// Default is a Config that lacks only the URLs.
func Default() Config {
	return Config{Queue: DefaultQueue, Timeout: DefaultTimeout, ReconnectWait: DefaultReconnectWait}
}

// Check says every fault, each with its field and remedy; the errors are ErrConfig.
// A Config without URLs is not checked further: it sends nothing.
func (c Config) Check() error {
	if len(c.URLs) == 0 {
		return nil
	}
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...)))
	}
	if len(c.URLs) > maxURLs {
		fault("urls: %d given; want at most %d", len(c.URLs), maxURLs)
	}
	for i, s := range c.URLs {
		u, err := url.Parse(s)
		if err != nil || (u.Scheme != "nats" && u.Scheme != "tls") || u.Hostname() == "" {
			fault("urls[%d]: %q: want nats://host:port or tls://host:port", i, s)
		} else if u.User != nil {
			fault("urls[%d]: it holds a password: use user and password, token, nkey-seed or credentials", i)
		}
	}
	if err := c.TLS.Check(); err != nil {
		fault("tls.%s", strings.TrimPrefix(err.Error(), tlsfile.ErrFile.Error()+": "))
	}
	if (c.User == "") != (c.Password == "") {
		fault("user: goes with password: give both or neither")
	}
	ways := 0
	for _, s := range []string{c.User, c.Token, c.NKeySeed, c.Credentials} {
		if s != "" {
			ways++
		}
	}
	if ways > 1 {
		fault("user, token, nkey-seed and credentials: %d are given; want one way to sign in", ways)
	}
	if c.Queue < 1 || c.Queue > maxQueue {
		fault("queue: %d: want 1 to %d, such as %d", c.Queue, maxQueue, DefaultQueue)
	}
	if c.Timeout <= 0 || c.Timeout > time.Minute {
		fault("timeout: %v: want more than 0 to 1m, such as %v", c.Timeout, DefaultTimeout)
	}
	if c.ReconnectWait <= 0 || c.ReconnectWait > time.Minute {
		fault("reconnect-wait: %v: want more than 0 to 1m, such as %v", c.ReconnectWait, DefaultReconnectWait)
	}
	return errors.Join(errs...)
}

// Connect connects for others who publish with what c has. A server that is away is tried
// again for as long as the connection lives; meanwhile what is published fails.
func (c Config) Connect() (*nats.Conn, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	opts, err := c.options()
	if err != nil {
		return nil, err
	}
	return nats.Connect(strings.Join(c.URLs, ","), opts...)
}

// options are what nats.go wants of c; files are read here, so that a wrong one fails
// at the start.
func (c Config) options() ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name("baton"), nats.Timeout(c.Timeout), nats.ReconnectWait(c.ReconnectWait),
		nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectBufSize(-1), // the publisher's own queue is the only one
	}
	tlsConfig, err := c.TLS.Client()
	if err != nil {
		return nil, fmt.Errorf("%w: tls: %w", ErrConfig, err)
	}
	if tlsConfig != nil {
		opts = append(opts, nats.Secure(tlsConfig))
	}
	switch {
	case c.User != "":
		opts = append(opts, nats.UserInfo(c.User, c.Password))
	case c.Token != "":
		opts = append(opts, nats.Token(c.Token))
	case c.NKeySeed != "":
		seed, err := nats.NkeyOptionFromSeed(c.NKeySeed)
		if err != nil {
			return nil, fmt.Errorf("%w: nkey-seed %s: %w: want a file with the seed of a user (SU…)", ErrConfig, c.NKeySeed, err)
		}
		opts = append(opts, seed)
	case c.Credentials != "":
		if _, err := os.Stat(c.Credentials); err != nil {
			return nil, fmt.Errorf("%w: credentials: %w", ErrConfig, err)
		}
		opts = append(opts, nats.UserCredentials(c.Credentials))
	}
	return opts, nil
}
