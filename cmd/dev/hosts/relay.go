package hosts

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// relay forwards the packets between tunnels, late, and some not at all.
type relay struct {
	link  Link
	ports map[netip.Addr]*tunnel
	work  sync.WaitGroup
	end   chan struct{}
}

// tunnel is the relay's end of one.
type tunnel struct {
	tun *os.File
	in  chan packet // to be written
}

// packet is one, and when it is due.
type packet struct {
	b   []byte
	due time.Time
}

const (
	// inFlight bounds the packets that are late at once; one more is lost, as in a switch.
	inFlight = 1024
	mtu      = 9000
)

// relayed connects the hosts and the caller by a relay in this process.
func (n *Net) relayed(l Link) (*relay, error) {
	r := &relay{link: l, ports: map[netip.Addr]*tunnel{}, end: make(chan struct{})}
	err := r.plug(bridge, addr(254))
	for _, h := range n.Hosts {
		if err == nil {
			err = h.inside(func() error { return r.plug(uplink, h.addr) })
		}
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	for _, p := range r.ports {
		r.work.Go(func() { r.read(p) })
		r.work.Go(func() { r.write(p) })
	}
	return r, nil
}

// plug makes a tunnel in the network of the calling thread.
func (r *relay) plug(device string, a netip.Addr) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("/dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(device)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err == nil {
		err = change(device, 0, attr(nil, unix.IFLA_MTU, number(mtu)))
	}
	if err == nil {
		err = configure(device, a)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("make tunnel %s: %w", device, err), unix.Close(fd))
	}
	r.ports[a] = &tunnel{os.NewFile(uintptr(fd), device), make(chan packet, inFlight)}
	return nil
}

// read takes what leaves a host, until close.
func (r *relay) read(p *tunnel) {
	b := make([]byte, mtu)
	for {
		n, err := p.tun.Read(b)
		if err != nil {
			return
		}
		if n < 20 || b[0]>>4 != 4 { // hosts speak IPv4
			continue
		}
		to := r.ports[netip.AddrFrom4([4]byte(b[16:20]))]
		if to == nil || rand.Float64() < r.link.Loss {
			continue
		}
		select {
		case to.in <- packet{append([]byte(nil), b[:n]...), time.Now().Add(r.link.Delay)}:
		default:
		}
	}
}

// write hands on what is due: the delay is one for all, so their order stays.
func (r *relay) write(p *tunnel) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case k := <-p.in:
			t.Reset(time.Until(k.due))
			select {
			case <-t.C:
			case <-r.end:
				return
			}
			if _, err := p.tun.Write(k.b); err != nil && errors.Is(err, os.ErrClosed) {
				return
			}
		case <-r.end:
			return
		}
	}
}

func (r *relay) close() error {
	close(r.end)
	var err error
	for _, p := range r.ports {
		err = errors.Join(err, p.tun.Close())
	}
	r.work.Wait()
	return err
}
