// Package owner is a process that owns GPU memory as an engine does, for tests and benchmarks:
// it allocates when it is told to, hands out handles and descriptors, and can be killed.
// It copies nothing.
//
// Like an engine's caching allocator it puts what is small into allocations that it shares,
// so that memories of one handle differ in their offsets.
package owner

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer"
)

// maxMessage bounds a message in bytes.
const maxMessage = 64 << 10

// request is what the owner is asked. Free 0: allocate.
type request struct {
	GPU   int
	Kind  transfer.Kind // CUDA or CUDAFD
	Bytes int64
	Free  int // number of an allocation, from 1
}

// reply is its answer; descriptors travel beside it.
type reply struct {
	Number int
	Memory transfer.Memory
	Err    string
}

// Owner is the process, seen by who started it, who calls Close. Safe for concurrent use.
type Owner struct {
	child *lifeline.Child
	mu    sync.Mutex // one question at a time
	conn  *net.UnixConn
}

// Start starts cmd, which has to call Serve.
func Start(cmd *exec.Cmd) (*Owner, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("owner: socket pair: %w", err)
	}
	ours, err := conn(fds[0])
	if err != nil {
		unix.Close(fds[1])
		return nil, err
	}
	theirs := os.NewFile(uintptr(fds[1]), "owner")
	defer theirs.Close()
	cmd.ExtraFiles = []*os.File{theirs}
	c, err := lifeline.Start(cmd)
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("owner: %w", err)
	}
	return &Owner{child: c, conn: ours}, nil
}

func conn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "owner")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("owner: socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("owner: not a unix socket")
	}
	return u, nil
}

// Alloc has n bytes of a GPU allocated. The memory's descriptors are the caller's.
func (o *Owner) Alloc(gpu int, kind transfer.Kind, n int64) (m transfer.Memory, number int, err error) {
	r, err := o.ask(request{GPU: gpu, Kind: kind, Bytes: n})
	return r.Memory, r.Number, err
}

// Free has an allocation freed.
func (o *Owner) Free(number int) error {
	_, err := o.ask(request{Free: number})
	return err
}

func (o *Owner) ask(q request) (r reply, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := write(o.conn, q, nil); err != nil {
		return r, fmt.Errorf("owner: ask: %w: %v", err, o.child.Err())
	}
	fds, err := read(o.conn, &r)
	if err != nil {
		return r, fmt.Errorf("owner: answer: %w: it said %q", err, o.child.Stderr())
	}
	if r.Err != "" {
		closeAll(fds)
		return r, errors.New(r.Err)
	}
	if g := r.Memory.GPU; g != nil && len(fds) != len(g.Chunks) {
		closeAll(fds)
		return r, fmt.Errorf("owner: %d descriptors of %d allocations", len(fds), len(g.Chunks))
	}
	r.Memory = r.Memory.WithFDs(fds)
	return r, nil
}

// Kill ends the process as kill -9 does, and waits for its exit.
func (o *Owner) Kill() {
	o.child.Kill()
	<-o.child.Exited()
}

// Close ends the process.
func (o *Owner) Close() error {
	o.Kill()
	return o.conn.Close()
}

func write(c *net.UnixConn, v any, fds []int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return fmt.Errorf("message of %d bytes: at most %d", len(b), maxMessage)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix(b, rights, nil)
	return err
}

func read(c *net.UnixConn, v any) (fds []int, err error) {
	b, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*253))
	n, k, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	if k > 0 {
		ms, err := unix.ParseSocketControlMessage(oob[:k])
		if err != nil {
			return nil, err
		}
		for i := range ms {
			got, err := unix.ParseUnixRights(&ms[i])
			if err != nil {
				return fds, err
			}
			fds = append(fds, got...)
		}
	}
	if err := json.Unmarshal(b[:n], v); err != nil {
		closeAll(fds)
		return nil, err
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
