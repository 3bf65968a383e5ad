package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/examples/engine/model"
)

const (
	poolBlocks = 256
	poolSlots  = 16
)

// bytesOf is what a hand-off moves: K and V of the tokens that decode lacks, in bf16,
// and the whole per-request state in fp32. No layout appears in it.
func bytesOf(m model.Config, tokens int) int64 {
	kv := m.AttentionLayers() * 2 * m.KVHeads * m.HeadDim * 2
	channels := m.SSMHeads*m.SSMHeadDim + 2*m.Groups*m.StateDim
	return int64(tokens*kv + m.SSMLayers()*(channels*m.Window+m.SSMHeads*m.SSMHeadDim*m.StateDim)*4)
}

// part is what a rank holds of the model.
func (w *world) part(g *dev.Running, rank int) model.Part {
	w.t.Helper()
	p, err := w.model.Cut(rank, model.Split{TP: int(g.TP), PP: int(g.PP), EP: int(g.EP), ExptTP: int(g.ExptTP), Layers: g.Layers})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func TestLayouts(t *testing.T) {
	for _, name := range []string{"hybrid", "attention"} {
		for _, cut := range [][2]int{{2, 1}, {1, 2}, {4, 2}} {
			t.Run(fmt.Sprintf("%s tp%d to tp%d", name, cut[0], cut[1]), func(t *testing.T) {
				w := up(t, fmt.Sprintf("tp=%d,role=prefill+tp=%d,role=decode", cut[0], cut[1]), name)
				w.crosses(1, block-1, block, block+1, 5*block+3, 12*block)
				w.repeated()
				w.nothingHeld()
			})
		}
	}
}

// TestStages: ranks that have some of the layers take those alone, from whoever has them.
func TestStages(t *testing.T) {
	w := up(t, "tp=2,pp=2,role=prefill+pp=3,layers=1:1:2,role=decode", "hybrid")
	w.crosses(1, block-1, block, block+1, 5*block+3)
}

// crosses: hand-offs of prompts of these lengths move what they must and no byte more, and
// so does one that shares a prefix with the fifth; each rank holds its part, and what was
// held comes back.
func (w *world) crosses(lengths ...int) {
	w.t.Helper()
	for i, n := range lengths {
		label := fmt.Sprintf("%d tokens", n)
		if m, want := w.handoff(label, prompt(i+1, n)), bytesOf(w.model, n); m.Bytes != want || m.Cached != 0 {
			w.t.Errorf("%s: moved %d bytes, %d tokens cached, want %d and 0", label, m.Bytes, m.Cached, want)
		}
	}
	w.sharedPrefix()
	w.shardSizes()
	w.onlyMoversMap()
	w.nothingHeld()
}

// nothingHeld: every block and slot of every group is free.
func (w *world) nothingHeld() {
	w.t.Helper()
	for _, g := range w.Groups {
		w.allFree(g, poolBlocks, poolSlots)
	}
}

// TestExperts: ranks that differ in their experts alone each take a copy, and an idle group
// that computes dummy rows gives back all that requests held.
func TestExperts(t *testing.T) {
	w := up(t, "tp=2,pp=2,ep=2,role=prefill+pp=3,role=decode+ep=2,expt_tp=2,role=decode", "hybrid-moe")
	copies := map[*dev.Running]int64{w.Groups[1]: 1, w.Groups[2]: 4}
	for i, n := range []int{1, block, 5*block + 3} {
		for dst, copies := range copies {
			label := fmt.Sprintf("%d tokens to %s", n, dst.Name)
			if m, want := w.between(w.prefill, dst, label, prompt(i+1, n)), copies*bytesOf(w.model, n); m.Bytes != want || m.Cached != 0 {
				t.Errorf("%s: moved %d bytes, %d tokens cached, want %d and 0", label, m.Bytes, m.Cached, want)
			}
		}
	}
	w.shardSizes()
	w.nothingHeld()
}

// sharedPrefix: a prompt that begins as one that decode has seen moves its suffix alone.
func (w *world) sharedPrefix() {
	w.t.Helper()
	const shared, suffix = 4, 21
	p := append(prompt(5, shared*block+3)[:shared*block:shared*block], prompt(77, suffix)...)
	m := w.handoff("suffix", p)
	if want := bytesOf(w.model, suffix); m.Cached != shared*block || m.Bytes != want {
		w.t.Errorf("suffix: moved %d bytes with %d tokens cached, want %d and %d", m.Bytes, m.Cached, want, shared*block)
	}
}

// repeated: of a prompt whose every block decode has, only per-request state moves.
func (w *world) repeated() {
	w.t.Helper()
	m := w.handoff("repeated", prompt(6, 12*block))
	if want := bytesOf(w.model, 0); m.Cached != 12*block || m.Bytes != want {
		w.t.Errorf("repeated: moved %d bytes with %d tokens cached, want %d and %d", m.Bytes, m.Cached, want, 12*block)
	}
}

// shardSizes: each rank's memory is its shard, by what it says and by its files.
func (w *world) shardSizes() {
	w.t.Helper()
	m := w.model
	for _, g := range w.Groups {
		for n, k := range g.Ranks {
			p, blocks, slots := w.part(g, n), poolBlocks, poolSlots
			if g.EP > 1 { // a dummy of each
				blocks, slots = blocks+1, slots+1
			}
			kv := int64(blocks*block*2*m.HeadDim*2) * int64(p.Attention.Len()*p.KV.Len())
			heads := int(p.Heads.Len()) * m.SSMHeads / m.SSMUnits * m.SSMHeadDim
			channels := heads + 2*int(p.Groups.Len())*m.StateDim
			state := int64(slots*4*(channels*m.Window+heads*m.StateDim)) * int64(p.SSM.Len())
			if k.Engine.KVBytes != kv || k.Engine.State != state {
				w.t.Errorf("%s/%d says %d bytes of KV and %d of state, want %d and %d", g.Name, n, k.Engine.KVBytes, k.Engine.State, kv, state)
			}
			var sum int64
			for _, f := range memfds(w.t, k.Engine.PID) {
				info, err := os.Stat(f)
				if err != nil {
					w.t.Fatal(err)
				}
				sum += info.Size()
			}
			if sum != kv+state {
				w.t.Errorf("%s/%d holds files of %d bytes, want %d", g.Name, n, sum, kv+state)
			}
		}
	}
}

// memfds are paths of an engine's memory, as seen in its process.
func memfds(t *testing.T, pid int) (paths []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fds {
		path := filepath.Join(dir, f.Name())
		if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to, "/memfd:baton-") {
			paths = append(paths, path)
		}
	}
	return paths
}

// mapped says which engines' memory a process maps, as GROUP-RANK.
func mapped(t *testing.T, pid int) map[string]bool {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, line := range strings.Split(string(b), "\n") {
		if _, name, ok := strings.Cut(line, "/memfd:baton-"); ok {
			name, _, _ = strings.Cut(name, " ")
			out[name[:strings.LastIndex(name, "-")]] = true
		}
	}
	return out
}

// onlyMoversMap: after hand-offs a decode rank's mover maps its own engine and the
// ranks that it read; sidecars map nothing, and engines only themselves.
func (w *world) onlyMoversMap() {
	w.t.Helper()
	for _, g := range w.Groups {
		for n, k := range g.Ranks {
			own := fmt.Sprintf("%s-%d", g.Name, n)
			if got := mapped(w.t, k.Sidecar.PID); len(got) > 0 {
				w.t.Errorf("sidecar %s maps %v", own, got)
			}
			if got := mapped(w.t, k.Engine.PID); len(got) != 1 || !got[own] {
				w.t.Errorf("engine %s maps %v", own, got)
			}
			got := mapped(w.t, k.Sidecar.MoverPID)
			want := map[string]bool{own: true}
			if g.Role == discovery.Decode {
				for _, src := range w.sources(w.prefill, g, n) {
					want[src] = true
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				w.t.Errorf("mover of %s maps %v, want %v", own, got, want)
			}
		}
	}
}

// sources are the prefill ranks that hold something of a decode rank's.
func (w *world) sources(src, dst *dev.Running, rank int) (names []string) {
	w.t.Helper()
	d := w.part(dst, rank)
	for r := range src.Ranks {
		s := w.part(src, r)
		kv := !s.Attention.Intersect(d.Attention).Empty() && !s.KV.Intersect(d.KV).Empty()
		ssm := !s.SSM.Intersect(d.SSM).Empty() && !s.Heads.Intersect(d.Heads).Empty()
		if kv || ssm {
			names = append(names, fmt.Sprintf("%s-%d", src.Name, r))
		}
	}
	return names
}
