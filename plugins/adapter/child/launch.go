package child

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"

	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/plugins/adapter/drive"
	"github.com/batonkv/baton/plugins/internal/selfcert"
	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/sidecar/handoff"
)

// startWithin bounds a handshake when the context of Open does not.
const startWithin = time.Minute

// Folder begins the names of the folders that Open makes, each for the socket of one life. A
// process that is killed leaves its last one.
const Folder = "plugin-dir"

// Open launches command, a program and its arguments, for each life. Its socket is in a folder
// in dir, "" for that of temporary files. What the program writes to its standard error goes to
// log, line by line and bounded.
func Open(command []string, dir string, log *slog.Logger) drive.Opener {
	said := newLines(log)
	return func(ctx context.Context) (*drive.Life, error) {
		own, err := selfcert.New(x509.ExtKeyUsageClientAuth)
		if err != nil {
			return nil, unopened(ctx, command[0], err)
		}
		p := &process{command: command, said: said}
		c := plugin.NewClient(&plugin.ClientConfig{
			HandshakeConfig:  handshake,
			VersionedPlugins: map[int]plugin.PluginSet{Version: {Name: &link{}}},
			RunnerFunc: func(_ hclog.Logger, spec *exec.Cmd, tmp string) (runner.Runner, error) {
				p.env, p.tmp = append(spec.Env, selfcert.EnvClient+"="+selfcert.PEM(own)), tmp
				return p, nil
			},
			AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
			UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: dir},
			// As AutoMTLS has it, which adds the child's certificate as the one root; without
			// one there is none.
			TLSConfig:    &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: x509.NewCertPool(), ServerName: selfcert.Name, MinVersion: tls.VersionTLS12},
			StartTimeout: startWithin, Logger: hclog.NewNullLogger(), SyncStdout: said, SyncStderr: said,
			GRPCDialOptions: []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(codec.MaxMessage))},
		})
		release := context.AfterFunc(ctx, p.kill)
		it, err := connect(c)
		if !release() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			p.kill()
			c.Kill()
			_ = os.RemoveAll(p.tmp) // which Kill leaves when nothing was started
			return nil, unopened(ctx, command[0], err)
		}
		return life(p, c, it), nil
	}
}

func connect(c *plugin.Client) (*client, error) {
	proto, err := c.Client()
	if err != nil {
		return nil, err
	}
	it, err := proto.Dispense(Name)
	if err != nil {
		return nil, err
	}
	return it.(*client), nil
}

// unopened says why a process did not become an adapter.
func unopened(ctx context.Context, name string, err error) error {
	if cerr := ctx.Err(); cerr != nil {
		return fmt.Errorf("%s: %w before its handshake: %w", name, cerr, err)
	}
	if strings.Contains(err.Error(), "incompatible API version") { // go-plugin has no sentinel for it
		return fmt.Errorf("%w: %s: %w", handoff.ErrVersion, name, err)
	}
	return fmt.Errorf("%w: %s: %w", handoff.ErrHost, name, err)
}

// life ties a process and its connection together.
func life(p *process, c *plugin.Client, it *client) *drive.Life {
	over, end := context.WithCancel(context.Background())
	it.over = over
	return &drive.Life{Adapter: it, Ask: it.Ask, Read: it.ReadBlocks, Counts: it.Counts, PID: p.child.PID(), Done: p.child.Exited(),
		Why: func() error { return fmt.Errorf("pid %d ended: %s", p.child.PID(), exit(p.child)) },
		Close: func(hard bool) error {
			end()
			if hard {
				p.kill()
			}
			c.Kill() // asks first, for two seconds
			it.close()
			return nil
		}}
}

// exit says how a process ended, with the last that it said.
func exit(c *lifeline.Child) string {
	how := "exit status 0"
	if err := c.Err(); err != nil {
		how = err.Error()
	}
	if s := c.Stderr(); s != "" {
		how += ": " + s[strings.LastIndexByte(s, '\n')+1:]
	}
	return how
}

// process is one child on a lifeline, as go-plugin wants to run it.
type process struct {
	command []string
	env     []string
	tmp     string // where go-plugin has the child's socket
	said    io.Writer
	stdout  *os.File // where the child's handshake comes from
	child   *lifeline.Child

	mu   sync.Mutex // guards child until it has started, and:
	dead bool       // it is not wanted any more
}

var _ runner.Runner = (*process)(nil)

// Start implements runner.Runner.
func (p *process) Start(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return errors.New("ended before it started")
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	cmd := exec.Command(p.command[0], p.command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, w, p.said
	if p.child, err = lifeline.Start(cmd); err != nil {
		r.Close()
		return err
	}
	p.stdout = r
	return nil
}

// kill ends the process, or keeps it from starting. It does not wait.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead = true; p.child != nil {
		p.child.Kill()
	}
}

// Kill implements runner.Runner: it waits for the exit. A process that the child left
// behind may hold its stdout open; go-plugin would wait for it.
func (p *process) Kill(context.Context) error {
	p.kill()
	<-p.child.Exited()
	return p.stdout.SetReadDeadline(time.Unix(1, 0))
}

// Wait implements runner.Runner.
func (p *process) Wait(context.Context) error {
	<-p.child.Exited()
	return p.child.Err()
}

func (p *process) Stdout() io.ReadCloser { return p.stdout }

// Stderr implements runner.Runner; the lifeline reads it.
func (p *process) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

func (p *process) Name() string { return p.command[0] }

// ID implements runner.Runner; empty when nothing was started.
func (p *process) ID() string {
	if p.child == nil {
		return ""
	}
	return strconv.Itoa(p.child.PID())
}

// Diagnose implements runner.Runner.
func (p *process) Diagnose(context.Context) string {
	if s := p.child.Stderr(); s != "" {
		return "it said:\n" + s
	}
	return "is it an adapter? its main calls child.Serve"
}

func (p *process) PluginToHost(network, addr string) (string, string, error) {
	return network, addr, nil
}

func (p *process) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}
