package dev

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/transfer/staged/nixl"
)

// Backends are what may move bytes between the processes of this machine: memory that is
// mapped, or the transports of staging, as between hosts; auto takes the best of those.
var Backends = []string{"shm", config.TCP, config.TCPPlain, config.NIXL, config.Auto}

// ErrBackend reports a backend that is not here.
var ErrBackend = errors.New("disagg-kv-transport-backend")

// CheckBackend refuses a name that is not of Backends, and one whose library is not here.
func CheckBackend(ctx context.Context, name string) error {
	if !slices.Contains(Backends, name) {
		return fmt.Errorf("%w: %q: want one of %s", ErrBackend, name, strings.Join(Backends, ", "))
	}
	if name == config.NIXL {
		if _, err := nixl.DefaultOptions().Found(ctx); err != nil {
			return fmt.Errorf("%w: %w", ErrBackend, err)
		}
	}
	return nil
}
