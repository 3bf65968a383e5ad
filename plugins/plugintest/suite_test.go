package plugintest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/child"
	"github.com/batonkv/baton/plugins/adapter/drive"
	"github.com/batonkv/baton/plugins/plugintest"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

const envChild = "PLUGINTEST_CHILD"

// TestMain makes the test binary an adapter when a test starts it as one.
func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		child.Serve(&ledger{})
	}
	os.Exit(m.Run())
}

// ledger keeps what it was told in a file: {"id": "phase"}.
type ledger struct {
	path  string
	state adapter.State
}

func (l *ledger) Register(context.Context) (adapter.Info, error) {
	return adapter.Info{Name: "ledger", Version: "1", Wants: []control.Kind{control.Exported, control.Over}}, nil
}

func (l *ledger) Configure(_ context.Context, section []byte) error {
	if l.path = string(section); !filepath.IsAbs(l.path) {
		return fmt.Errorf("%w: %q: want an absolute path", handoff.ErrSection, l.path)
	}
	return nil
}

func (l *ledger) Sync(_ context.Context, s adapter.State) error { return l.write(s) }

func (l *ledger) Notify(_ context.Context, u adapter.Update) error { return l.write(l.state.Apply(u)) }

func (l *ledger) Drain(context.Context) error { return nil }

// ReadBlocks implements adapter.BlockReader: beside the file is one with the number of blocks.
func (l *ledger) ReadBlocks(f adapter.BlockFeed) {
	path := l.path + ".blocks"
	go func() { // until its life ends
		for {
			held := map[uint64]bool{}
			for e, err := range f.Blocks(context.Background()) {
				switch {
				case errors.Is(err, handoff.ErrOrder):
					return
				case e.Kind == handoff.BlocksCleared:
					clear(held)
				}
				for _, b := range e.Blocks {
					held[b.ID] = true
				}
				for _, id := range e.Removed {
					delete(held, id)
				}
				if err == nil {
					_ = errors.Join(os.WriteFile(path+".new", fmt.Append(nil, len(held)), 0o600), os.Rename(path+".new", path)) // the suite sees that it is missing
				}
			}
		}
	}()
}

func (l *ledger) write(s adapter.State) error {
	l.state = s
	lines := map[string]string{}
	for _, i := range s.Handoffs {
		lines[i.ID.String()] = i.Phase.String()
	}
	b, err := json.Marshal(lines)
	return errors.Join(err, os.WriteFile(l.path+".new", b, 0o600), os.Rename(l.path+".new", l.path))
}

// subject is a ledger however it is opened.
func subject(t *testing.T, open drive.Opener) plugintest.Subject {
	path := filepath.Join(t.TempDir(), "ledger")
	return plugintest.Subject{Open: open, Section: []byte(path), Bad: [][]byte{nil, []byte("here")},
		Shows: func(t *testing.T) map[string]string {
			b, err := os.ReadFile(path)
			var lines map[string]string
			if err = errors.Join(err, json.Unmarshal(b, &lines)); err != nil {
				t.Error(err)
			}
			return lines
		},
		Blocks: func(*testing.T) (n int) {
			b, err := os.ReadFile(path + ".blocks")
			if _, serr := fmt.Sscan(string(b), &n); err != nil || serr != nil {
				return -1
			}
			return n
		}}
}

func TestBuiltIn(t *testing.T) {
	plugintest.Run(t, func(t *testing.T) plugintest.Subject {
		return subject(t, drive.BuiltIn(func() adapter.Adapter { return &ledger{} }))
	})
}

func TestChild(t *testing.T) {
	t.Setenv(envChild, "1")
	plugintest.Run(t, func(t *testing.T) plugintest.Subject {
		return subject(t, child.Open([]string{os.Args[0]}, "", slog.New(slog.NewTextHandler(t.Output(), nil))))
	})
}
