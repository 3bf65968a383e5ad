package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/sidecar/handoff"
)

// blocksArg makes the test binary an adapter that keeps what it reads of a prefix cache in a
// file: tokens by block. Its section is "file: PATH".
const blocksArg = "blocks"

type blockFile struct{ path string }

func (*blockFile) Register(context.Context) (adapter.Info, error) {
	return adapter.Info{Name: "blocks", Version: "1"}, nil
}

func (b *blockFile) Configure(_ context.Context, section []byte) error {
	var ok bool
	if b.path, ok = strings.CutPrefix(strings.TrimSpace(string(section)), "file: "); !ok {
		return fmt.Errorf("%w: %q: want file", handoff.ErrSection, section)
	}
	return nil
}

func (*blockFile) Sync(context.Context, adapter.State) error    { return nil }
func (*blockFile) Notify(context.Context, adapter.Update) error { return nil }
func (*blockFile) Drain(context.Context) error                  { return nil }

// ReadBlocks reads until the process ends.
func (b *blockFile) ReadBlocks(f adapter.BlockFeed) {
	go func() {
		held := map[uint64][]int32{}
		for e, err := range f.Blocks(context.Background()) {
			if err != nil {
				return
			}
			if e.Kind == handoff.BlocksCleared {
				clear(held)
			}
			for _, s := range e.Blocks {
				held[s.ID] = s.Tokens
			}
			for _, id := range e.Removed {
				delete(held, id)
			}
			text, err := json.Marshal(held)
			if err := errors.Join(err, os.WriteFile(b.path+".new", text, 0o600), os.Rename(b.path+".new", b.path)); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
}

// caches waits until the reader of a group shows these prompts' complete blocks and no others,
// and returns their ids.
func (w *world) caches(path string, prompts ...[]int32) (ids []uint64) {
	w.t.Helper()
	want := map[string]bool{}
	for _, p := range prompts {
		for i := block; i <= len(p); i += block {
			want[fmt.Sprint(p[i-block:i])] = true
		}
	}
	eventually(w.t, filepath.Base(path)+" shows what its engine caches", func() bool {
		text, err := os.ReadFile(path)
		held, got := map[uint64][]int32{}, map[string]bool{}
		if err != nil || json.Unmarshal(text, &held) != nil {
			return false
		}
		for _, tokens := range held {
			got[fmt.Sprint(tokens)] = true
		}
		ids = slices.Sorted(maps.Keys(held))
		return reflect.DeepEqual(got, want)
	})
	return ids
}

// TestBlockEvents: a reader in a process of its own is told what engines cache, prompts and
// imports alike, again after its sidecar was killed, and nothing of what is forgotten.
func TestBlockEvents(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w := up(t, "tp=1,role=prefill+tp=2,role=decode", "attention", func(o *dev.Options) {
		o.Restart = true
		o.Adapters = func(g dev.Group) []config.Adapter {
			return []config.Adapter{{Name: "blocks", Command: []string{self, blocksArg}, Section: "file: " + filepath.Join(dir, g.Name)}}
		}
	})
	prefill, decode := filepath.Join(dir, "prefill-0"), filepath.Join(dir, "decode-0")
	w.caches(prefill)
	w.caches(decode)
	p := prompt(1, 5*block+3)
	man, err := w.export(bounded(t), w.prefill, "a", p)
	if err != nil {
		t.Fatal(err)
	}
	made := w.caches(prefill, p)
	if _, err := generate(bounded(t), w.decode, front.Request{Tokens: p, MaxNew: maxNew, Label: "a", Mode: front.Import, Manifest: &man}, nil); err != nil {
		t.Fatal(err)
	}
	if brought := w.caches(decode, p); !slices.Equal(brought, made) {
		t.Errorf("imported %v, exported %v", brought, made)
	}
	q := prompt(2, 2*block)
	if _, err := generate(bounded(t), w.decode, front.Request{Tokens: q, MaxNew: maxNew, Mode: front.Full}, nil); err != nil {
		t.Fatal(err)
	}
	w.caches(decode, p, q)
	if n := w.metric(w.decode, "baton_blocks_known"); n != 7 {
		t.Errorf("%v blocks are known", n)
	}
	if err := os.Remove(decode); err != nil {
		t.Fatal(err)
	}
	w.kill(victim{group: func(w *world) *dev.Running { return w.decode }})
	w.caches(decode, p, q)
	if _, err := generate(bounded(t), w.decode, front.Request{Mode: front.Reset}, nil); err != nil {
		t.Fatal(err)
	}
	w.caches(decode)
	w.caches(prefill, p)
}
