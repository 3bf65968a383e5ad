// Package sockfd passes descriptors over unix sockets and tells who is at the other
// end. It knows no protocol: packets are bytes with at most one descriptor.
package sockfd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrSocket reports a path that cannot be a socket of ours, or one that is in use.
var ErrSocket = errors.New("sockfd: bad socket")

// MaxPath is the longest socket path, in bytes: what sockaddr_un holds, less its end.
const MaxPath = 107

// CheckPath says whether path can name a unix socket.
func CheckPath(path string) error {
	switch {
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return fmt.Errorf("%w: %q: want an absolute, clean path", ErrSocket, path)
	case len(path) > MaxPath:
		return fmt.Errorf("%w: %q: %d bytes, at most %d: choose a shorter run directory", ErrSocket, path, len(path), MaxPath)
	}
	return nil
}

// Cred is who holds the other end of a connection.
type Cred struct {
	PID int32
	UID uint32
}

// PeerCred asks the kernel for the process that connected c, or that listens for it.
func PeerCred(c *net.UnixConn) (Cred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Cred{}, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Cred{}, err
	}
	if cerr != nil {
		return Cred{}, os.NewSyscallError("getsockopt", cerr)
	}
	return Cred{PID: cred.Pid, UID: cred.Uid}, nil
}

// Lock takes the lock file path for this process; it ends with the returned file or
// the process. Another live holder is refused by its pid.
func Lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSocket, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		var pid [32]byte
		n, _ := f.Read(pid[:])
		f.Close()
		return nil, fmt.Errorf("%w: %s: held by process %s: stop it, or choose another run directory", ErrSocket, path, pid[:n])
	}
	if err := f.Truncate(0); err == nil {
		_, err = fmt.Fprintf(f, "%d", os.Getpid())
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("%w: %w", ErrSocket, err)
		}
	}
	return f, nil
}

// Listen makes a socket of mode 0600 at path; network is "unix" or "unixpacket". A
// socket that nobody serves is removed first. Any other file there is left alone.
// The caller holds a Lock, so that two starters do not remove each other's.
func Listen(network, path string) (*net.UnixListener, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	addr := &net.UnixAddr{Name: path, Net: network}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%w: %s: a file that is no socket is there: remove it", ErrSocket, path)
		}
		if c, err := net.DialUnix(network, nil, addr); err == nil {
			cred, _ := PeerCred(c)
			c.Close()
			return nil, fmt.Errorf("%w: %s: served by process %d: stop it, or choose another run directory", ErrSocket, path, cred.PID)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("%w: stale: %w", ErrSocket, err)
		}
	}
	l, err := net.ListenUnix(network, addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSocket, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("%w: %w", ErrSocket, err)
	}
	return l, nil
}

// Dial connects to a packet socket whose owner has this process's user id. Deadlines
// of ctx hold for the whole connection.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSocket, err)
	}
	u := c.(*net.UnixConn)
	cred, err := PeerCred(u)
	if err == nil && cred.UID != uint32(os.Geteuid()) {
		err = fmt.Errorf("%w: %s: served by user %d, this is user %d", ErrSocket, path, cred.UID, os.Geteuid())
	}
	if err != nil {
		u.Close()
		return nil, err
	}
	if t, ok := ctx.Deadline(); ok {
		_ = u.SetDeadline(t)
	}
	return u, nil
}

// Send writes one packet with fd, or without one when fd is negative. The caller keeps fd.
func Send(c *net.UnixConn, packet []byte, fd int) error {
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	n, m, err := c.WriteMsgUnix(packet, oob, nil)
	if err == nil && (n != len(packet) || m != len(oob)) {
		err = io.ErrShortWrite
	}
	return err
}

// Recv reads one packet into p and returns its length and descriptor, -1 if none. The
// caller owns the descriptor; it is closed on exec. io.EOF is the end. More than one
// descriptor, or a longer packet, is an error and every descriptor is closed.
func Recv(c *net.UnixConn, p []byte) (n, fd int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(p, oob)
	fds := rights(oob[:oobn])
	switch {
	case err != nil:
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > 1:
		err = fmt.Errorf("%w: packet of over %d bytes, or over one descriptor", ErrSocket, len(p))
	case n == 0 && len(fds) == 0:
		err = io.EOF
	}
	if err != nil {
		CloseAll(fds)
		return 0, -1, err
	}
	if len(fds) == 0 {
		return n, -1, nil
	}
	return n, fds[0], nil
}

func rights(oob []byte) (fds []int) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range msgs {
		if got, err := unix.ParseUnixRights(&m); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// Dup duplicates descriptors, for this process alone. The caller owns them.
func Dup(fds []int) (out []int, err error) {
	for _, f := range fds {
		d, err := unix.FcntlInt(uintptr(f), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			CloseAll(out)
			return nil, fmt.Errorf("duplicate descriptor %d: %w", f, err)
		}
		out = append(out, d)
	}
	return out, nil
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, f := range fds {
		unix.Close(f)
	}
}

// Until makes reads and writes of c fail when ctx ends. The returned function ends that.
func Until(ctx context.Context, c *net.UnixConn) func() {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}
