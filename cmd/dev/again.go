package dev

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/batonkv/baton/lifeline"
)

// attend sees the sidecar of a rank to its end. One that ends by itself is started again
// over the same run directory, at the same address, if Options.Restart says so; its
// engine attaches again by itself. The goroutine ends with Close.
func (c *Cluster) attend(g *Running, rank int32, child *lifeline.Child) {
	name, addr := fmt.Sprintf("sidecar %s/%d", g.Name, rank), c.Sidecar(g, rank).Addr
	for {
		<-child.Exited()
		switch {
		case c.ends():
			return
		case !c.opt.Restart:
			c.tell(fmt.Errorf("%s ended by itself: %v", name, child.Err()))
			return
		}
		c.opt.Progress(fmt.Sprintf("%s ended by itself (%v): starting it again", name, child.Err()))
		next, err := c.again(g, rank, addr)
		if err != nil {
			c.tell(fmt.Errorf("%s was started again: %w", name, err))
			return
		}
		r := c.Sidecar(g, rank)
		c.opt.Progress(fmt.Sprintf("%s is up again: %s, pid %d, metrics %s, mover %d", name, r.Addr, r.PID, r.Metrics, r.MoverPID))
		child = next
	}
}

// againLimit bounds the start of a sidecar in a dead one's place.
const againLimit = 30 * time.Second

// again starts a sidecar until one is ready: one that is killed while it starts is like
// one that is killed later. One that ends by itself would end again.
func (c *Cluster) again(g *Running, rank int32, addr string) (*lifeline.Child, error) {
	ctx, cancel := context.WithTimeout(context.Background(), againLimit)
	defer cancel()
	var child *lifeline.Child
	var ready SidecarReady
	for {
		var err error
		if child, err = c.start(g.Group, "sidecar", "--config", filepath.Join(c.rankDir(g.Group, rank), sidecarConfig), "--listen", addr); err != nil {
			return nil, err
		}
		if err = child.AwaitReady(ctx, &ready); err == nil {
			break
		}
		if ctx.Err() != nil || c.ends() || !killed(child.Err()) {
			return nil, err
		}
	}
	c.here(g.Group, &ready.PID, &ready.MoverPID)
	c.mu.Lock()
	defer c.mu.Unlock()
	g.Ranks[rank].Sidecar, g.Ranks[rank].sidecar = ready, child
	return child, nil
}

func killed(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// KillSidecar ends a rank's sidecar by SIGKILL and returns what the one in its place says.
// Options.Restart is set.
func (c *Cluster) KillSidecar(ctx context.Context, g *Running, rank int32) (SidecarReady, error) {
	c.mu.Lock()
	old := g.Ranks[rank].sidecar
	c.mu.Unlock()
	old.Kill()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		if r := c.Sidecar(g, rank); r.PID != old.PID() {
			return r, nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return SidecarReady{}, context.Cause(ctx)
		}
	}
}

// Sidecar is what the present sidecar of a rank said when it was ready. It changes when
// that is started again.
func (c *Cluster) Sidecar(g *Running, rank int32) SidecarReady {
	c.mu.Lock()
	defer c.mu.Unlock()
	return g.Ranks[rank].Sidecar
}

func (c *Cluster) ends() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing
}

// tell passes on the first child that ended by itself, unless that is what Close does.
func (c *Cluster) tell(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return
	}
	select {
	case c.died <- err:
	default:
	}
}
