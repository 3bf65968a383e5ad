// Package hosts makes places of this machine that stand for hosts: each has a network
// interface, process numbers and a /proc of its own, and what runs there reaches the others
// over that network alone. Files are shared, as by a network file system.
//
// The caller runs in a network of its own, which Isolate gives a process, so that nothing of
// the machine's network changes; the kernel takes everything back when the last process ends.
package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/batonkv/baton/lifeline"
)

// ErrHosts reports that this machine cannot make hosts, or not for this user.
var ErrHosts = errors.New("hosts")

// Config of a Net.
type Config struct {
	Hosts int // 1 to maxHosts
	// Command is the init process of a host: it calls Serve.
	Command []string
	Env     []string // nil: the caller's
	Stderr  io.Writer
	Link    Link
}

// Link is what packets between hosts, and the caller, meet. The zero value is the kernel's
// own: no delay and no loss.
type Link struct {
	Delay time.Duration // of each packet
	Loss  float64       // share of packets that are lost, 0 to 0.5
}

const (
	maxHosts = 8
	bits     = 24
	// bridge is the caller's interface, uplink a host's.
	bridge, uplink = "baton0", "eth0"
)

// Net is the hosts, and the network between them and the caller.
type Net struct {
	Hosts []*Host
	relay *relay   // nil: the kernel forwards
	made  []string // interfaces of the caller's network
	how   string
}

// Addr is where hosts reach the caller.
func (n *Net) Addr() string { return addr(254).String() }

// How says by what packets travel.
func (n *Net) How() string { return n.how }

func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(i)}) }

// Host is one of them. Its processes end with it.
type Host struct {
	init *lifeline.Child
	pid  int // of its init, as the caller sees it
	addr netip.Addr
}

// Addr is the host's address.
func (h *Host) Addr() string { return h.addr.String() }

// Host is its name, which no other host has.
func (h *Host) Host() string { return "host-" + strings.ReplaceAll(h.Addr(), ".", "-") }

// Isolate has cmd run in a network of its own, which New needs, and as its root. The start
// fails where the kernel allows neither to this user.
func Isolate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
}

// New makes hosts in the network of the caller, which Isolate made. Close ends them.
func New(ctx context.Context, c Config) (n *Net, err error) {
	if c.Hosts < 1 || c.Hosts > maxHosts || len(c.Command) == 0 || c.Link.Delay < 0 || c.Link.Loss < 0 || c.Link.Loss > 0.5 {
		return nil, fmt.Errorf("%w: want 1 to %d hosts, a command, no negative delay and a loss of 0 to 0.5", ErrHosts, maxHosts)
	}
	n = &Net{how: "a bridge"}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w: %w", ErrHosts, err), n.Close())
			n = nil
		}
	}()
	for i := range c.Hosts {
		h, err := start(ctx, c, i+1)
		if h != nil {
			n.Hosts = append(n.Hosts, h)
		}
		if err != nil {
			return n, err
		}
	}
	return n, n.connect(c.Link)
}

// start starts a host's init, which is alone there.
func start(ctx context.Context, c Config, i int) (*Host, error) {
	cmd := exec.Command(c.Command[0], c.Command[1:]...)
	cmd.Env, cmd.Stderr = c.Env, c.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	child, err := lifeline.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("a host of network, process numbers and mounts of its own: %w", err)
	}
	h := &Host{init: child, pid: child.PID(), addr: addr(i)}
	return h, child.AwaitReady(ctx, new(int))
}

// connect gives everybody an address, and a way to the others.
func (n *Net) connect(l Link) error {
	if l == (Link{}) {
		return n.bridge(nil)
	}
	err := n.bridge(netem(l))
	if !errors.Is(err, errNoNetem) {
		n.how = "a bridge with netem"
		return err
	}
	if err := n.unplug(); err != nil {
		return err
	}
	n.how = "a relay"
	n.relay, err = n.relayed(l)
	return err
}

// unplug takes the caller's interfaces away, and with them the other ends of cables.
func (n *Net) unplug() (err error) {
	for _, name := range n.made {
		err = errors.Join(err, remove(name))
	}
	n.made = nil
	return err
}

// bridge joins the hosts by the kernel; shape is done to each host's interface.
func (n *Net) bridge(shape func(device string) error) error {
	if err := addBridge(bridge); err != nil {
		return err
	}
	n.made = append(n.made, bridge)
	for i, h := range n.Hosts {
		err := addVeth(port(i), uplink, h.pid)
		if err == nil {
			n.made = append(n.made, port(i))
			err = enslave(port(i), bridge)
		}
		if err == nil {
			err = h.inside(func() error { return configure(uplink, h.addr) })
		}
		if err == nil && shape != nil {
			err = h.inside(func() error { return shape(uplink) })
		}
		if err != nil {
			return err
		}
	}
	return configure(bridge, addr(254))
}

// Start starts cmd on the host. Its files, and its working directory, are the caller's.
func (h *Host) Start(cmd *exec.Cmd) (c *lifeline.Child, err error) {
	err = h.inside(func() (err error) {
		c, err = lifeline.Start(cmd)
		return err
	})
	return c, err
}

// Kill ends all that runs on the host at once, as a loss of power does.
func (h *Host) Kill() {
	h.init.Kill()
	<-h.init.Exited()
}

// Plug takes the cable of the i-th host out, or puts it in again. A relay has none.
func (n *Net) Plug(i int, in bool) error {
	if n.relay != nil {
		return fmt.Errorf("%w: %w: a relay has no cables", ErrHosts, errors.ErrUnsupported)
	}
	if in {
		return up(port(i))
	}
	return down(port(i))
}

// port is the bridge's end of a host's cable.
func port(i int) string { return fmt.Sprintf("port%d", i) }

// Close ends the hosts and all that runs on them.
func (n *Net) Close() error {
	for _, h := range n.Hosts {
		h.Kill()
	}
	err := n.unplug()
	if n.relay != nil {
		err = errors.Join(err, n.relay.close())
	}
	return err
}
