package hosts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The kernel's interfaces are made and changed by messages of rtnetlink(7), in the network of
// the calling thread.

var ne = binary.NativeEndian

// attr appends an attribute: u16 length | u16 type | value, padded to 4 bytes.
func attr(b []byte, typ uint16, value []byte) []byte {
	b = ne.AppendUint16(ne.AppendUint16(b, uint16(4+len(value))), typ)
	b = append(b, value...)
	return append(b, make([]byte, -len(b)&3)...)
}

func text(s string) []byte { return append([]byte(s), 0) }

func number(n uint32) []byte { return ne.AppendUint32(nil, n) }

// link is the head of a message on an interface: ifinfomsg.
func link(index int, flags, change uint32) []byte {
	b := []byte{unix.AF_UNSPEC, 0, 0, 0}
	b = ne.AppendUint32(b, uint32(index))
	return ne.AppendUint32(ne.AppendUint32(b, flags), change)
}

// ask sends a request and waits for the kernel's acknowledgement.
func ask(typ uint16, flags int, body []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := ne.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = ne.AppendUint16(ne.AppendUint16(b, typ), uint16(unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags))
	b = append(ne.AppendUint32(ne.AppendUint32(b, 1), 0), body...)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	in := make([]byte, 8192)
	n, _, err := unix.Recvfrom(fd, in, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || ne.Uint16(in[4:]) != unix.NLMSG_ERROR {
		return errors.New("netlink: not an acknowledgement")
	}
	if code := int32(ne.Uint32(in[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// kind describes an interface that is to be made.
func kind(name string, data []byte) []byte {
	b := attr(nil, unix.IFLA_INFO_KIND, text(name))
	if data != nil {
		b = attr(b, unix.IFLA_INFO_DATA, data)
	}
	return b
}

func addBridge(name string) error {
	b := attr(link(0, 0, 0), unix.IFLA_IFNAME, text(name))
	b = attr(b, unix.IFLA_LINKINFO, kind("bridge", nil))
	return named("make bridge "+name, ask(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b))
}

// vethPeer is VETH_INFO_PEER of the kernel's veth.h.
const vethPeer = 1

// addVeth makes a cable between this network and that of a process.
func addVeth(name, peer string, pid int) error {
	other := attr(link(0, 0, 0), unix.IFLA_IFNAME, text(peer))
	other = attr(other, unix.IFLA_NET_NS_PID, number(uint32(pid)))
	b := attr(link(0, 0, 0), unix.IFLA_IFNAME, text(name))
	b = attr(b, unix.IFLA_LINKINFO, kind("veth", attr(nil, vethPeer, other)))
	return named("make veth "+name, ask(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b))
}

// enslave puts an interface into a bridge, up.
func enslave(name, bridge string) error {
	master, err := net.InterfaceByName(bridge)
	if err != nil {
		return err
	}
	return change(name, unix.IFF_UP, attr(nil, unix.IFLA_MASTER, number(uint32(master.Index))))
}

func up(name string) error { return change(name, unix.IFF_UP, nil) }

func down(name string) error { return change(name, 0, nil) }

// change sets whether an interface is up, and attributes.
func change(name string, up uint32, attrs []byte) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	return named("change "+name, ask(unix.RTM_NEWLINK, 0, append(link(i.Index, up, unix.IFF_UP), attrs...)))
}

// remove takes an interface away that may have gone with its other end.
func remove(name string) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	if err := ask(unix.RTM_DELLINK, 0, link(i.Index, 0, 0)); !errors.Is(err, unix.ENODEV) {
		return named("remove "+name, err)
	}
	return nil
}

// configure gives an interface its address, and takes it and the loopback up.
func configure(name string, a netip.Addr) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	ip := a.AsSlice()
	b := []byte{unix.AF_INET, bits, 0, unix.RT_SCOPE_UNIVERSE} // ifaddrmsg
	b = ne.AppendUint32(b, uint32(i.Index))
	b = attr(attr(b, unix.IFA_LOCAL, ip), unix.IFA_ADDRESS, ip)
	if err := ask(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b); err != nil {
		return named("give "+name+" an address", err)
	}
	return errors.Join(up(name), up("lo"))
}

func named(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// errNoNetem says that this machine delays and loses nothing by itself.
var errNoNetem = errors.New("no netem")

// netem shapes what leaves an interface, by tc(8), where the kernel has it.
func netem(l Link) func(device string) error {
	return func(device string) error {
		cmd := exec.Command("tc", "qdisc", "add", "dev", device, "root", "netem",
			"delay", strconv.FormatInt(l.Delay.Microseconds(), 10)+"us", "loss", strconv.FormatFloat(100*l.Loss, 'f', 4, 64)+"%")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: tc: %w: %s", errNoNetem, err, strings.TrimSpace(string(out)))
		}
		return nil
	}
}
