package dev

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/batonkv/baton/cmd/config"
)

// Backends are what may move bytes between the processes of this machine: memory that is
// mapped, or the transports of staging, as between hosts.
var Backends = []string{"shm", config.TCP, config.TCPPlain}

// ErrBackend reports a backend that is not here.
var ErrBackend = errors.New("disagg-kv-transport-backend")

// CheckBackend refuses a name that is not of Backends.
func CheckBackend(name string) error {
	if !slices.Contains(Backends, name) {
		return fmt.Errorf("%w: %q: this machine's backends are: %s", ErrBackend, name, strings.Join(Backends, ", "))
	}
	return nil
}
