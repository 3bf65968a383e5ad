package mover

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer"
)

// readBuffer is the usual size of a reader's buffer in bytes.
const readBuffer = 64 << 10

// socketPair is two connected ends, close-on-exec.
func socketPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("mover: socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "mover"), os.NewFile(uintptr(fds[1]), "sidecar"), nil
}

// fileConn makes a connection of f and closes f.
func fileConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("mover: socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("mover: descriptor is no unix socket but %s", c.LocalAddr().Network())
	}
	return u, nil
}

// frameReader reads frames and the descriptors that come with them. One goroutine uses it at
// a time.
type frameReader struct {
	raw  syscall.RawConn
	err  error // why there is no raw
	buf  []byte
	lo   int   // buf[lo:] is unread
	fds  []int // arrived, of frames not yet read
	held []int // of kindFDs frames, for the frame after them
	oob  []byte

	nowait bool          // next answers errNothing rather than sleep
	spin   time.Duration // how long a read looks before it sleeps
}

func newFrameReader(c *net.UnixConn) *frameReader {
	r := &frameReader{buf: make([]byte, 0, readBuffer), oob: make([]byte, unix.CmsgSpace(4*253))}
	r.raw, r.err = c.SyscallConn()
	return r
}

// errNothing is a read that would sleep.
const errNothing = unix.EAGAIN

// next reads a frame; io.EOF is the orderly end.
func (r *frameReader) next() (frame, error) {
	for {
		if err := r.fill(headBytes); err != nil {
			return frame{}, err
		}
		h := r.buf[r.lo : r.lo+headBytes]
		n, k, nfds, id := le.Uint32(h), kind(h[4]), int(le.Uint16(h[6:])), le.Uint64(h[8:])
		if n > maxBody || nfds > maxFrameFDs {
			return frame{}, fmt.Errorf("%w: %d bytes and %d descriptors", errWire, n, nfds)
		}
		if err := r.fill(headBytes + int(n)); err != nil {
			return frame{}, err
		}
		if nfds > len(r.fds) {
			return frame{}, fmt.Errorf("%w: %d of %d descriptors arrived: raise the limit of open files", errWire, len(r.fds), nfds)
		}
		body := r.buf[r.lo+headBytes : r.lo+headBytes+int(n)]
		r.lo += headBytes + int(n)
		r.held = append(r.held, r.fds[:nfds]...)
		r.fds = r.fds[nfds:]
		if k == kindFDs {
			if len(r.held) > maxFDs {
				return frame{}, fmt.Errorf("%w: %d descriptors for one frame", errWire, len(r.held))
			}
			continue
		}
		f := frame{kind: k, id: id, body: body, fds: r.held}
		r.held = nil
		return f, nil
	}
}

// fill reads until n bytes are unread. It moves what is left to the front first, which
// ends the life of the last frame's body.
func (r *frameReader) fill(n int) error {
	if len(r.buf)-r.lo >= n {
		return nil
	}
	left := r.buf[r.lo:]
	if n > cap(r.buf) || cap(r.buf) > readBuffer && n <= readBuffer && len(left) <= readBuffer {
		r.buf = append(make([]byte, 0, max(n, readBuffer)), left...)
	} else {
		r.buf = append(r.buf[:0], left...)
	}
	r.lo = 0
	for len(r.buf) < n {
		m, oobn, flags, err := r.receive(r.buf[len(r.buf):cap(r.buf)])
		r.buf = r.buf[:len(r.buf)+max(m, 0)] // -1 with an error
		if oobn > 0 {
			if e := r.take(r.oob[:oobn]); e != nil {
				return e
			}
		}
		switch {
		case err != nil:
			return err
		case flags&unix.MSG_CTRUNC != 0:
			return fmt.Errorf("%w: descriptors were lost: raise the limit of open files", errWire)
		case m <= 0 && len(r.buf) > 0: // in the middle of a frame
			return io.ErrUnexpectedEOF
		case m <= 0:
			return io.EOF
		}
	}
	return nil
}

// receive is one read into b, and into oob.
func (r *frameReader) receive(b []byte) (n, oobn, flags int, err error) {
	if r.err != nil {
		return 0, 0, 0, r.err
	}
	try := func(fd uintptr) bool {
		for {
			n, oobn, flags, _, err = unix.Recvmsg(int(fd), b, r.oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			if !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	}
	var closed error
	switch spin := r.spin; {
	case r.nowait:
		closed = r.raw.Control(func(fd uintptr) { try(fd) })
	case spin > 0:
		closed = r.raw.Read(func(fd uintptr) bool {
			until(fd, spin, nil)
			spin = 0 // whatever woke it, it has slept
			return try(fd)
		})
	default:
		closed = r.raw.Read(try)
	}
	if closed != nil {
		return 0, 0, 0, closed
	}
	return n, oobn, flags, err
}

// until looks, for at most spin, until fd can be read or done is closed, on its processor and
// without Go's scheduler: in a guest, both cost more than most messages.
func until(fd uintptr, spin time.Duration, done <-chan struct{}) (readable bool) {
	for end := time.Now().Add(spin); ; {
		p := [...]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, _ := unix.Poll(p[:], 0); n > 0 {
			return true
		}
		select {
		case <-done:
			return false
		default:
		}
		if !time.Now().Before(end) {
			return false
		}
	}
}

func (r *frameReader) take(oob []byte) error {
	ms, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: control message: %w", errWire, err)
	}
	for i := range ms {
		fds, err := unix.ParseUnixRights(&ms[i])
		if err != nil {
			continue // not descriptors
		}
		r.fds = append(r.fds, fds...)
	}
	return nil
}

// close closes descriptors that arrived for frames that were never read.
func (r *frameReader) close() {
	closeFDs(r.fds)
	closeFDs(r.held)
	r.fds, r.held = nil, nil
}

// writeFrame writes f and closes its descriptors, also when it fails. buf is scratch.
// A frame without a kind is the rest of one, and its body is written as it is.
func writeFrame(c *net.UnixConn, buf []byte, f *frame) ([]byte, error) {
	defer closeFDs(f.fds)
	if f.kind == 0 {
		return buf, writeAll(c, f.body, nil)
	}
	fds := f.fds
	for len(fds) > maxFrameFDs {
		if err := writeAll(c, appendHead(buf[:0], kindFDs, 0, 0, maxFrameFDs), fds[:maxFrameFDs]); err != nil {
			return buf, err
		}
		fds = fds[maxFrameFDs:]
	}
	buf = f.append(buf[:0], len(fds))
	return buf, writeAll(c, buf, fds)
}

// writeAll writes b; the descriptors travel with its first byte.
func writeAll(c *net.UnixConn, b []byte, fds []int) error {
	if len(fds) > 0 {
		n, _, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	if len(b) == 0 {
		return nil
	}
	_, err := c.Write(b)
	return err
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func closeMemory(m transfer.Memory) {
	closeFDs(m.FDs())
}

func closePeer(p transfer.Peer) {
	for _, m := range p.Regions {
		closeMemory(m)
	}
}
