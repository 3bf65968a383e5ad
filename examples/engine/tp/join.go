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

// Socket is the name of rank 0's socket in the rendezvous directory; another rank has its
// number in it.
const Socket = "tp.sock"

func socket(dir string, rank int) string {
	if rank == 0 {
		return filepath.Join(dir, Socket)
	}
	return filepath.Join(dir, fmt.Sprintf("tp-%d.sock", rank))
}

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
	g := newGroup(j.Rank, j.Size)
	if j.Size == 1 {
		return g, nil
	}
	if err := g.meetAll(ctx, j); err != nil {
		_ = g.Close()
		if !errors.Is(err, ErrJoin) {
			err = fmt.Errorf("%w: %w", ErrJoin, err)
		}
		return nil, err
	}
	return g, nil
}

// meetAll gives each rank a stream to every other. A rank listens before it reports to
// rank 0, and rank 0 answers when all have: from then on lower ranks are there to dial.
func (g *Group) meetAll(ctx context.Context, j Join) error {
	l, err := Listen(ctx, socket(j.Dir, j.Rank))
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for low := range j.Rank {
		if g.conns[low], err = dial(ctx, j, low); err != nil {
			return err
		}
	}
	if err := g.accept(ctx, j, l); err != nil {
		return err
	}
	if j.Rank > 0 {
		return nil
	}
	for r := 1; r < j.Size; r++ {
		if err := g.send(r, frameHello, nil); err != nil {
			return err
		}
	}
	return nil
}

// accept waits for all higher ranks.
func (g *Group) accept(ctx context.Context, j Join, l net.Listener) error {
	all := j.Size - 1 - j.Rank
	for missing := all; missing > 0; {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("%w: %d of %d ranks are missing at %s: %w", ErrJoin, missing, all, l.Addr(), cause(ctx, err))
		}
		rank, err := greet(c, j, g.conns)
		if err != nil {
			// The refused rank is told why; the others are still awaited.
			_ = writeFrame(c, frameRefused, []byte(err.Error()))
			_ = c.Close()
			continue
		}
		g.conns[rank] = c
		missing--
	}
	return nil
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
	case h.Size != j.Size || h.Rank <= j.Rank || h.Rank >= j.Size:
		return 0, fmt.Errorf("%w: rank %d of %d, this group has %d", ErrJoin, h.Rank, h.Size, j.Size)
	case h.Identity != j.Identity:
		return 0, fmt.Errorf("%w: rank %d is of %q, rank %d of %q", ErrJoin, h.Rank, h.Identity, j.Rank, j.Identity)
	case have[h.Rank] != nil:
		return 0, fmt.Errorf("%w: rank %d is there already", ErrJoin, h.Rank)
	}
	return h.Rank, c.SetReadDeadline(time.Time{})
}

// dial joins a lower rank. Rank 0 may not listen yet; it alone answers, once all are there.
func dial(ctx context.Context, j Join, to int) (net.Conn, error) {
	path := socket(j.Dir, to)
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	for err != nil {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("rank %d is not at %s: %w", to, path, err)
		case <-time.After(redial):
			c, err = d.DialContext(ctx, "unix", path)
		}
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	b, err := json.Marshal(hello{Rank: j.Rank, Size: j.Size, Identity: j.Identity})
	if err == nil {
		err = writeFrame(c, frameHello, b)
	}
	if err == nil && to == 0 {
		err = answer(c)
	}
	if err != nil {
		_ = c.Close()
		return nil, cause(ctx, err)
	}
	return c, nil
}

func answer(c net.Conn) error {
	kind, b, err := readFrame(c, nil)
	switch {
	case err != nil:
		return err
	case kind == frameRefused:
		return errors.New(string(b))
	case kind != frameHello:
		return fmt.Errorf("%w: kind %d", ErrFrame, kind)
	}
	return nil
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
