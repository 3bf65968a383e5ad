package e2e

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
)

// TestPeerMessages counts what one hand-off sends between sidecars. The first one of a
// pair of groups also asks for geometry and buffers; the second is the steady state.
func TestPeerMessages(t *testing.T) {
	for _, c := range []struct {
		shards string
		want   map[string]uint64
	}{
		// Rank 1 of prefill pins by Pinned and gets Leased and the decision Free.
		{"tp=2,role=prefill+tp=1,role=decode", map[string]uint64{"Open": 1, "Opened": 1, "Check": 2, "Checked": 2, "Done": 1, "DoneAck": 1,
			"Pinned": 1, "Leased": 1, "Decision": 1, "RankHeld": 1, "RankApplied": 1}},
		// Rank 1 of decode gets Reserve and Admit once each.
		{"tp=1,role=prefill+tp=2,role=decode", map[string]uint64{"Open": 1, "Opened": 1, "Check": 2, "Checked": 2, "Done": 1, "DoneAck": 1,
			"Decision": 2, "RankHeld": 2, "RankApplied": 2, "RankReserved": 1, "Landed": 1}},
	} {
		t.Run(c.shards, func(t *testing.T) {
			w := up(t, c.shards, "hybrid")
			w.handoff("first", prompt(1, 20))
			w.allFree(w.prefill, poolBlocks, poolSlots)
			settled := func() bool { return w.counts(w.Groups...)["RankApplied"]%c.want["RankApplied"] == 0 }
			eventually(t, "every rank has applied", settled)
			before := w.counts(w.Groups...)
			w.handoff("second", prompt(2, 40))
			w.allFree(w.prefill, poolBlocks, poolSlots)
			got := map[string]uint64{}
			eventually(t, "every rank has applied", func() bool {
				clear(got)
				for what, n := range w.counts(w.Groups...) {
					if n > before[what] {
						got[what] = n - before[what]
					}
				}
				return got["RankApplied"] >= c.want["RankApplied"]
			})
			if !maps.Equal(got, c.want) {
				t.Errorf("sent %v, want %v", got, c.want)
			}
		})
	}
}

// scripted is an engine rank that keeps its books and computes nothing: real memory,
// the real client, and a test's eyes on the stream.
type scripted struct {
	*client.Client
	rank *engine.Rank

	mu        sync.Mutex // guards:
	decisions []handoff.Decision
	others    []handoff.ToEngine
	wg        sync.WaitGroup
	stop      context.CancelFunc
}

func engineConfig(g *dev.Running, rank int32, m model.Config) engine.Config {
	return engine.Config{Model: m, Group: g.Name, Instance: handoff.Instance(g.Instance), Rank: int(rank), TP: int(g.TP),
		Blocks: poolBlocks, Slots: poolSlots, BlockTokens: block, Poison: true}
}

// attachScripted starts a scripted engine on the sidecar in dir.
func attachScripted(ctx context.Context, g *dev.Running, rank int32, m model.Config, dir string) (*scripted, error) {
	r, err := engine.New(engineConfig(g, rank, m))
	if err != nil {
		return nil, err
	}
	c, err := client.Dial(ctx, client.Config{Dir: dir, Attach: r.Attach(), Files: r.Files()})
	if err != nil {
		r.Close()
		return nil, err
	}
	s := &scripted{Client: c, rank: r}
	run, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.wg.Go(func() { s.run(run) })
	return s, nil
}

func (s *scripted) close() {
	s.stop()
	s.wg.Wait()
	s.Client.Close()
	s.rank.Close()
}

// run applies decisions as soon as Through allows.
func (s *scripted) run(ctx context.Context) {
	next := int32(0)
	for {
		select {
		case <-s.Wake():
		case <-ctx.Done():
			return
		}
		for _, m := range s.Poll(nil) {
			s.mu.Lock()
			s.others = append(s.others, m)
			s.mu.Unlock()
			t, ok := m.(handoff.Through)
			if !ok {
				continue
			}
			for _, d := range s.Decisions(t.N) {
				s.mu.Lock()
				s.decisions = append(s.decisions, d)
				s.mu.Unlock()
				if d.Kind == handoff.Reserve {
					n := (d.Tokens + block - 1) / block
					r := handoff.Reserved{N: d.N, Slot: next % poolSlots}
					for b := range n {
						r.Blocks = append(r.Blocks, next+b)
					}
					next += n
					_ = s.Send(r)
				}
				_ = s.Send(handoff.Applied{N: d.N})
			}
		}
	}
}

func (s *scripted) kinds() (ks []handoff.DecisionKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.decisions {
		ks = append(ks, d.Kind)
	}
	return ks
}

// TestEngineStream: an engine hears Reserve and Admit once each for an import, and an
// exporting one Free once.
func TestEngineStream(t *testing.T) {
	m := model.Hybrid(1)
	engines := map[string]*scripted{}
	w := up(t, "tp=1,role=prefill+tp=1,role=decode", "hybrid", func(o *dev.Options) {
		o.Engine = func(ctx context.Context, g *dev.Running, rank int32, dir string) error {
			s, err := attachScripted(ctx, g, rank, m, dir)
			if err == nil {
				engines[g.Name] = s
				t.Cleanup(s.close)
			}
			return err
		}
	})
	src, dst := engines[w.prefill.Name], engines[w.decode.Name]
	tokens := prompt(1, 3*block)
	for _, msg := range []handoff.FromEngine{
		handoff.Announce{Label: "a"},
		handoff.Export{Label: "a", Blocks: []int32{4, 5, 6}, Slot: 2, Tokens: 3 * block, Position: 3 * block, Resume: handoff.Resume{Tokens: []int32{9}}},
	} {
		if err := src.Send(msg); err != nil {
			t.Fatal(err)
		}
	}
	man := <-w.manifest("a")
	got, err := w.decode.Leader.Import(bounded(t), handoff.Import{Label: "b", Manifest: man, Tokens: tokens, Deadline: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if got.Bytes != bytesOf(m, 3*block) {
		t.Errorf("moved %d bytes", got.Bytes)
	}
	if ks := dst.kinds(); !slices.Equal(ks, []handoff.DecisionKind{handoff.Reserve, handoff.Admit}) {
		t.Errorf("decode's engine applied %v", ks)
	}
	eventually(t, "the export is freed", func() bool { return len(src.kinds()) > 0 })
	if ks := src.kinds(); !slices.Equal(ks, []handoff.DecisionKind{handoff.Free}) {
		t.Errorf("prefill's engine applied %v", ks)
	}
}

// TestEngineImports: rank 0's engine asks for the import on its own stream, with the
// manifest that the prefill engine gave its caller.
func TestEngineImports(t *testing.T) {
	for _, shards := range []string{"tp=2,role=prefill+tp=1,role=decode", "tp=1,role=prefill+tp=2,role=decode"} {
		w := up(t, shards, "hybrid")
		ctx, p := bounded(t), prompt(3, 2*block+5)
		res, err := generate(ctx, w.prefill, front.Request{Tokens: p, MaxNew: maxNew, Label: "src", Mode: front.Export}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.Manifest == nil || res.Reason != "exported" {
			t.Fatalf("export gave %+v", res)
		}
		var got []int32
		in := front.Request{Tokens: p, MaxNew: maxNew, Label: "dst", Mode: front.Import, Manifest: res.Manifest}
		if res, err = generate(ctx, w.decode, in, &got); err != nil {
			t.Fatal(err)
		}
		w.equal("dst", p, got)
		if res.Forwarded != 0 {
			t.Errorf("decode computed %d prompt tokens", res.Forwarded)
		}
		if _, err = generate(ctx, w.decode, in, nil); err == nil {
			t.Error("one copy was imported twice")
		}
		w.nothingHeld()
	}
}
