package tp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Socket is the name of rank 0's socket in the rendezvous directory.
const Socket = "tp.sock"

// redial is the pause between two tries to reach a rank 0 that does not listen yet.
const redial = 10 * time.Millisecond

// Join says which rank of which group meets in Dir. Identity is equal on all ranks of
// one launch and differs between launches: instance, model, sizes.
type Join struct {
	Dir        string
	Rank, Size int
	Identity   string
}

// Check reports a rank that is outside its group.
func (j Join) Check() error {
	switch {
	case j.Size < 1 || j.Size > MaxRanks || j.Rank < 0 || j.Rank >= j.Size:
		return fmt.Errorf("%w: rank %d of %d: want at most %d ranks", ErrJoin, j.Rank, j.Size, MaxRanks)
	case j.Size > 1 && j.Dir == "":
		return fmt.Errorf("%w: no rendezvous directory for %d ranks", ErrJoin, j.Size)
	case len(j.Identity) > 4096:
		return fmt.Errorf("%w: identity of %d bytes: at most 4096", ErrJoin, len(j.Identity))
	}
	return nil
}

type hello struct {
	Rank, Size int
	Identity   string
}

// Meet waits until every rank is there, or ctx ends.
func Meet(ctx context.Context, j Join) (*Group, error) {
	if err := j.Check(); err != nil {
		return nil, err
	}
	switch {
	case j.Size == 1:
		return Single(), nil
	case j.Rank == 0:
		return listen(ctx, j)
	default:
		return dial(ctx, j)
	}
}

func listen(ctx context.Context, j Join) (*Group, error) {
	path := filepath.Join(j.Dir, Socket)
	l, err := Listen(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrJoin, err)
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	g := &Group{size: j.Size, conns: make([]net.Conn, j.Size-1)}
	for missing := j.Size - 1; missing > 0; {
		c, err := l.Accept()
		if err != nil {
			_ = g.Close()
			return nil, fmt.Errorf("%w: %d of %d ranks are missing at %s: %w", ErrJoin, missing, j.Size, path, cause(ctx, err))
		}
		rank, err := greet(c, j, g.conns)
		if err != nil {
			// The refused rank is told why; the others are still awaited.
			_ = writeFrame(c, frameRefused, []byte(err.Error()))
			_ = c.Close()
			continue
		}
		g.conns[rank-1] = c
		missing--
	}
	for _, c := range g.conns {
		if err := writeFrame(c, frameHello, nil); err != nil {
			_ = g.Close()
			return nil, err
		}
	}
	return g, nil
}

// greet reads a rank's hello and checks it against the group.
func greet(c net.Conn, j Join, have []net.Conn) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return 0, err
	}
	kind, b, err := readFrame(c, nil)
	if err != nil {
		return 0, err
	}
	var h hello
	if kind != frameHello || len(b) > 8192 || json.Unmarshal(b, &h) != nil {
		return 0, fmt.Errorf("%w: no hello", ErrFrame)
	}
	switch {
	case h.Size != j.Size || h.Rank < 1 || h.Rank >= j.Size:
		return 0, fmt.Errorf("%w: rank %d of %d, this group has %d", ErrJoin, h.Rank, h.Size, j.Size)
	case h.Identity != j.Identity:
		return 0, fmt.Errorf("%w: rank %d is of %q, rank 0 of %q", ErrJoin, h.Rank, h.Identity, j.Identity)
	case have[h.Rank-1] != nil:
		return 0, fmt.Errorf("%w: rank %d is there already", ErrJoin, h.Rank)
	}
	return h.Rank, c.SetReadDeadline(time.Time{})
}

func dial(ctx context.Context, j Join) (*Group, error) {
	path := filepath.Join(j.Dir, Socket)
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	for err != nil {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: rank 0 is not at %s: %w", ErrJoin, path, err)
		case <-time.After(redial):
			c, err = d.DialContext(ctx, "unix", path)
		}
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	b, err := json.Marshal(hello{Rank: j.Rank, Size: j.Size, Identity: j.Identity})
	if err == nil {
		err = writeFrame(c, frameHello, b)
	}
	var kind byte
	if err == nil {
		kind, b, err = readFrame(c, nil)
	}
	switch {
	case err != nil:
	case kind == frameHello:
		return &Group{rank: j.Rank, size: j.Size, conns: []net.Conn{c}}, nil
	case kind == frameRefused:
		err = errors.New(string(b))
	default:
		err = fmt.Errorf("%w: kind %d", ErrFrame, kind)
	}
	_ = c.Close()
	return nil, fmt.Errorf("%w: %w", ErrJoin, cause(ctx, err))
}

func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Listen opens a unix socket of mode 0600. It replaces a socket that nobody listens on
// and refuses one that is in use.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	var d net.Dialer
	if c, err := d.DialContext(ctx, "unix", path); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("socket %s is in use: stop its owner or choose another path", path)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%s exists and is no socket: remove it or choose another path", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("stale socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}
