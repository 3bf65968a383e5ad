package sidecar

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/staged/nixl"
)

const (
	// trialBytes is the arena of a trial, and its chunk.
	trialBytes = 64 << 10
	// starting bounds the start of a wire mover: NIXL looks at every device of the host.
	starting = time.Minute
)

// checkNIXL refuses paths of NIXL that the configuration names and that lead to no library.
func checkNIXL(ctx context.Context, s *config.Staging) error {
	if s.Transport != config.NIXL && s.Transport != config.Auto || s.NIXL.Library == "" && s.NIXL.Python == "" || s.NIXL.Check() != nil {
		return nil
	}
	if _, err := s.NIXL.Found(ctx); err != nil {
		return fmt.Errorf("%w: staging.nixl: %w", config.ErrConfig, err)
	}
	return nil
}

// findNIXL finds the library and tries it in a wire mover of its own, which the library may
// take along. The error says why NIXL cannot be used.
func (p *parts) findNIXL(ctx context.Context, exe string) error {
	s := p.cfg.Staging
	if s.Transport != config.NIXL && s.Transport != config.Auto {
		return nil
	}
	var err error
	if p.nixl, err = s.NIXL.Found(ctx); err != nil {
		return err
	}
	c, err := p.wireMover(exe)
	if err != nil {
		return err
	}
	arena, err := unix.MemfdCreate("trial-arena", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("%w: %w", transfer.ErrMemory, err)
	}
	defer unix.Close(arena)
	if err := unix.Ftruncate(arena, trialBytes); err != nil {
		return fmt.Errorf("%w: %w", transfer.ErrMemory, err)
	}
	c.Arena = transfer.Memory{Kind: transfer.Memfd, FD: arena, Len: trialBytes}
	c.Setup.Transport, c.Setup.Bytes, c.Setup.Chunk = config.NIXL, trialBytes, trialBytes
	w, err := mover.StartWire(ctx, c)
	if err != nil {
		return err
	}
	w.Kill(errors.New("the trial is over"))
	<-w.Exited()
	return nil
}

// nixlProtocol is what both ends must have alike; a change of the side connection that the
// other end would not understand changes the number.
func nixlProtocol(o nixl.Options) string { return "nixl/1/" + o.Backend }
