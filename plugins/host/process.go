package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/internal/hlog"
	"github.com/batonkv/baton/plugins/wire"
	"github.com/batonkv/baton/proto/version"
	"github.com/batonkv/baton/sidecar/handoff"
)

// process is one plugin that answered. Its end is noticed when it happens.
type process struct {
	client  *plugin.Client
	run     *child
	conn    *grpc.ClientConn
	exited  chan struct{}
	began   time.Time
	endOnce sync.Once
	broken  atomic.Bool // its connection broke, whether or not it lives
}

// launch starts a plugin and waits for its first answer.
func launch(ctx context.Context, c Config) (*process, error) {
	p := &process{exited: make(chan struct{}), began: time.Now()}
	log := hlog.New(c.Log) // hears what the plugin logs, too
	p.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  plugin.HandshakeConfig{MagicCookieKey: plugins.CookieKey, MagicCookieValue: plugins.CookieValue},
		VersionedPlugins: sets(),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS:         !c.Plain,
		StartTimeout:     c.Start,
		SkipHostEnv:      true, // newChild gives it, before what go-plugin sets
		Stderr:           c.Stderr,
		Logger:           log,
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			var err error
			p.run, err = newChild(c, cmd.Env, p.exited)
			return p.run, err
		},
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxMessage), grpc.MaxCallSendMsgSize(wire.MaxMessage)),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
			grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithNoProxy(),
		},
	})
	stopped := context.AfterFunc(ctx, func() { p.kill() })
	err := p.meet(ctx)
	if !stopped() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		p.end()
		return nil, fmt.Errorf("%w: start %s: %w", handoff.ErrHost, c.Command[0], p.why(err))
	}
	c.Log.Info("the plugin runs", "pid", p.pid(), "version", p.client.NegotiatedVersion(), "after", time.Since(p.began))
	return p, nil
}

// sets are the interfaces by protocol version.
func sets() map[int]plugin.PluginSet {
	set := plugin.PluginSet{plugins.HandoffPlugin: connPlugin{}, plugins.ReshardPlugin: connPlugin{}, plugins.ClusterPlugin: connPlugin{}}
	m := map[int]plugin.PluginSet{}
	for _, v := range version.Plugin() {
		m[v] = set
	}
	return m
}

// connPlugin dispenses the connection: each interface is a service on it.
type connPlugin struct{ plugin.NetRPCUnsupportedPlugin }

func (connPlugin) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}

func (connPlugin) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return errors.New("host: this is the client's half")
}

// meet shakes hands and asks for a sign of life.
func (p *process) meet(ctx context.Context) error {
	rpc, err := p.client.Client()
	if err != nil {
		return err
	}
	got, err := rpc.Dispense(plugins.HandoffPlugin)
	if err != nil {
		return err
	}
	p.conn = got.(*grpc.ClientConn)
	if err := rpc.Ping(); err != nil {
		return err
	}
	return ctx.Err()
}

// why makes the reason for a failed start one that a caller can act on.
func (p *process) why(err error) error {
	if p.run == nil {
		return err
	}
	line, said := p.run.said()
	if parts := strings.Split(line, "|"); len(parts) > 1 {
		if v, perr := strconv.Atoi(parts[1]); perr == nil {
			if _, ok := version.Common([]int{v}, version.Plugin()); !ok {
				return fmt.Errorf("%w: this host speaks version %s of the plugin's protocol and the plugin %d: upgrade the older of the two",
					handoff.ErrVersion, version.Format(version.Plugin()), v)
			}
		}
	}
	if said != "" {
		return fmt.Errorf("it said: %s: %w", said, err)
	}
	return err
}

func (p *process) pid() int {
	if p.run == nil || p.run.cmd.Process == nil {
		return 0
	}
	return p.run.cmd.Process.Pid
}

func (p *process) lived() time.Duration { return time.Since(p.began) }

func (p *process) dead() bool {
	select {
	case <-p.exited:
		return true
	default:
		return p.broken.Load()
	}
}

// broke is told of a connection that ended: a plugin that lives and is not reached is of
// no use, and holds nothing that its end could lose.
func (p *process) broke() {
	p.broken.Store(true)
	p.kill()
}

func (p *process) kill() {
	if p.run != nil {
		_ = p.run.Kill(context.Background())
	}
}

// polite is how long a plugin may take to end by itself.
const polite = time.Second

// end ends the plugin, whatever it does, and waits for all that belongs to it.
func (p *process) end() {
	p.endOnce.Do(func() {
		late := time.AfterFunc(polite, p.kill) // one that stands still does not answer the polite word
		defer late.Stop()
		p.client.Kill()
		p.kill()
	})
}

// child is the plugin as an operating system's process: what go-plugin's own runner does,
// with the end told on a channel, and the first words kept.
type child struct {
	cmd            *exec.Cmd
	stdout, stderr io.ReadCloser
	exited         chan struct{}

	mu    sync.Mutex // guards:
	first head       // of stdout: the handshake
	words head       // of stderr
}

// head keeps the beginning of a stream.
type head struct{ bytes.Buffer }

const maxHead = 4 << 10

func (h *head) keep(b []byte) {
	if n := min(len(b), maxHead-h.Len()); n > 0 {
		h.Write(b[:n])
	}
}

func newChild(c Config, env []string, exited chan struct{}) (*child, error) {
	r := &child{cmd: exec.Command(c.Command[0], c.Command[1:]...), exited: exited}
	r.cmd.Env = append(append(os.Environ(), c.Env...), env...)
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	errs, err := r.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	r.stdout, r.stderr = &tee{out, r, &r.first}, &tee{errs, r, &r.words}
	return r, nil
}

// tee keeps the head of what is read.
type tee struct {
	io.ReadCloser
	of *child
	to *head
}

func (t *tee) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	t.of.mu.Lock()
	t.to.keep(b[:n])
	t.of.mu.Unlock()
	return n, err
}

// said is the first line of stdout, and the first of stderr.
func (r *child) said() (out, errs string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out, _, _ = strings.Cut(r.first.String(), "\n")
	errs, _, _ = strings.Cut(r.words.String(), "\n")
	return out, errs
}

// Start implements runner.Runner, as the other methods do.
func (r *child) Start(context.Context) error { return r.cmd.Start() }

func (r *child) Wait(context.Context) error {
	err := r.cmd.Wait()
	close(r.exited)
	return err
}

func (r *child) Kill(context.Context) error {
	if r.cmd.Process == nil {
		return nil
	}
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (r *child) Diagnose(context.Context) string { return "" }
func (r *child) Stdout() io.ReadCloser           { return r.stdout }
func (r *child) Stderr() io.ReadCloser           { return r.stderr }
func (r *child) Name() string                    { return r.cmd.Path }

func (r *child) ID() string {
	if r.cmd.Process == nil {
		return ""
	}
	return strconv.Itoa(r.cmd.Process.Pid)
}

func (r *child) PluginToHost(network, addr string) (string, string, error) { return network, addr, nil }
func (r *child) HostToPlugin(network, addr string) (string, string, error) { return network, addr, nil }
