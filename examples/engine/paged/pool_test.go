package paged_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine/paged"
	"github.com/batonkv/baton/sidecar/engine/blockhash"
	"pgregory.net/rapid"
)

// model is a naive account of what the pool must hold: per block its cached chain and
// the holds that list it.
type model struct {
	cfg    paged.Config
	pool   *paged.Pool
	mirror *paged.Pool
	prompt map[paged.ID][]int32
	cached map[uint64]bool // hashes that were admitted and may have been evicted since
}

func hashes(prompt []int32, block int32) []uint64 {
	h, err := blockhash.Hashes(prompt, block, blockhash.Salt{})
	if err != nil {
		panic(err)
	}
	return h
}

func (m *model) ids(ph ...paged.Phase) []paged.ID {
	var out []paged.ID
	for id := range m.prompt {
		if t, ok := m.pool.Lookup(id); ok && slices.Contains(ph, t.Phase) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func (m *model) check(t *rapid.T) {
	holders := map[int32][]paged.ID{}
	slots := map[int32]paged.ID{}
	for id := range m.prompt {
		tab, ok := m.pool.Lookup(id)
		if !ok {
			t.Fatalf("hold %d vanished", id)
		}
		seen := map[int32]bool{}
		for _, b := range tab.Blocks {
			if seen[b] || b < 0 || b >= m.cfg.Blocks {
				t.Fatalf("hold %d: block %d twice or outside: %v", id, b, tab.Blocks)
			}
			seen[b] = true
			holders[b] = append(holders[b], id)
		}
		if tab.Slot >= 0 {
			if o, taken := slots[tab.Slot]; taken {
				t.Fatalf("slot %d is with %d and %d", tab.Slot, o, id)
			}
			slots[tab.Slot] = id
		}
	}
	m.shared(t, holders)
	s := m.pool.Stats()
	if s.Free+s.Idle+s.Held != m.cfg.Blocks || int(s.Held) != len(holders) || int(s.SlotHeld) != len(slots) {
		t.Fatalf("stats %+v: %d blocks held, %d slots held, %d blocks in all", s, len(holders), len(slots), m.cfg.Blocks)
	}
	if m.pool.Digest() != m.mirror.Digest() {
		t.Fatal("mirrored pools disagree")
	}
}

// shared checks that a block with several holders is the same complete prefix to all.
func (m *model) shared(t *rapid.T, holders map[int32][]paged.ID) {
	for b, ids := range holders {
		if len(ids) < 2 {
			continue
		}
		var want uint64
		for _, id := range ids {
			tab, _ := m.pool.Lookup(id)
			i := slices.Index(tab.Blocks, b)
			hs := hashes(m.prompt[id], m.cfg.BlockTokens)
			if i >= len(hs) || (want != 0 && hs[i] != want) {
				t.Fatalf("block %d is shared by %v but not one complete prefix", b, ids)
			}
			want = hs[i]
		}
	}
}

func (m *model) both(t *rapid.T, do func(p *paged.Pool) (string, error)) error {
	a, errA := do(m.pool)
	b, errB := do(m.mirror)
	if a != b || fmt.Sprint(errA) != fmt.Sprint(errB) {
		t.Fatalf("mirror: %s %v, pool: %s %v", b, errB, a, errA)
	}
	return errA
}

func (m *model) reserve(t *rapid.T) {
	// A small alphabet, so that prefixes are often shared.
	prompt := rapid.SliceOfN(rapid.Int32Range(0, 1), 0, 12).Draw(t, "prompt")
	n := paged.Need{Hashes: hashes(prompt, m.cfg.BlockTokens), Tokens: int32(len(prompt)),
		Continuation: rapid.Int32Range(0, 1).Draw(t, "continuation"), Slot: rapid.Bool().Draw(t, "slot")}
	before := m.pool.Stats()
	var tab paged.Table
	err := m.both(t, func(p *paged.Pool) (string, error) {
		var err error
		tab, err = p.Reserve(n)
		return fmt.Sprint(tab), err
	})
	want := m.pool.BlocksFor(n.Tokens) + n.Continuation
	switch {
	case err == nil:
		if int32(len(tab.Blocks)) != want || (tab.Slot >= 0) != n.Slot || tab.Cached%m.cfg.BlockTokens != 0 {
			t.Fatalf("need %+v got %+v", n, tab)
		}
		for _, h := range n.Hashes[:tab.Cached/m.cfg.BlockTokens] {
			if !m.cached[h] {
				t.Fatalf("hash %d was never admitted", h)
			}
		}
		m.prompt[tab.ID] = prompt
	case errors.Is(err, paged.ErrNever):
		if want <= m.cfg.Blocks && (!n.Slot || m.cfg.Slots > 0) {
			t.Fatalf("refused for ever: %v", err)
		}
	case errors.Is(err, paged.ErrFull):
		if before.Free+before.Idle >= want && (!n.Slot || before.SlotsFree > 0) {
			t.Fatalf("full with %+v for %d blocks: %v", before, want, err)
		}
	default:
		t.Fatal(err)
	}
	if err != nil && m.pool.Stats() != before {
		t.Fatal("a refused reserve took something")
	}
}

func (m *model) on(t *rapid.T, phases []paged.Phase, keep bool, do func(p *paged.Pool, id paged.ID) error) {
	ids := m.ids(phases...)
	if len(ids) == 0 {
		t.Skip("none")
	}
	id := rapid.SampledFrom(ids).Draw(t, "id")
	if err := m.both(t, func(p *paged.Pool) (string, error) { return "", do(p, id) }); err != nil {
		t.Fatal(err)
	}
	if !keep {
		delete(m.prompt, id)
	}
}

func (m *model) extend(t *rapid.T) {
	more := rapid.Int32Range(0, 20).Draw(t, "tokens")
	m.on(t, []paged.Phase{paged.Live}, true, func(p *paged.Pool, id paged.ID) error {
		was, _ := p.Lookup(id)
		had, avail := int32(len(was.Blocks)), p.Available()
		tab, err := p.Extend(id, more)
		want := p.BlocksFor(more)
		if err == nil && int32(len(tab.Blocks)) != max(want, had) {
			return fmt.Errorf("extend to %d: %+v", more, tab)
		}
		if errors.Is(err, paged.ErrFull) && want-had <= avail {
			return err
		}
		return nil
	})
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := paged.Config{Blocks: rapid.Int32Range(1, 12).Draw(t, "blocks"),
			Slots: rapid.Int32Range(0, 3).Draw(t, "slots"), BlockTokens: rapid.Int32Range(1, 4).Draw(t, "block tokens")}
		m := &model{cfg: cfg, prompt: map[paged.ID][]int32{}, cached: map[uint64]bool{}}
		var err error
		if m.pool, err = paged.New(cfg); err != nil {
			t.Fatal(err)
		}
		m.mirror, _ = paged.New(cfg)
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"reserve": m.reserve,
			"admit": func(t *rapid.T) {
				m.on(t, []paged.Phase{paged.Reserved}, true, func(p *paged.Pool, id paged.ID) error {
					hs := hashes(m.prompt[id], cfg.BlockTokens)
					for _, h := range hs {
						m.cached[h] = true
					}
					_, err := p.Admit(id, hs)
					return err
				})
			},
			"extend": m.extend,
			"drop": func(t *rapid.T) {
				m.on(t, []paged.Phase{paged.Reserved}, true, (*paged.Pool).Drop)
			},
			"pin": func(t *rapid.T) { m.on(t, []paged.Phase{paged.Live}, true, (*paged.Pool).Pin) },
			"release": func(t *rapid.T) {
				m.on(t, []paged.Phase{paged.Quarantined}, false, func(p *paged.Pool, id paged.ID) error {
					if _, err := p.Free(id); !errors.Is(err, paged.ErrHold) {
						return fmt.Errorf("free of a quarantined hold: %v", err)
					}
					_, err := p.ReleaseQuarantine(id)
					return err
				})
			},
			"free": func(t *rapid.T) {
				m.on(t, []paged.Phase{paged.Reserved, paged.Live, paged.Pinned}, false, func(p *paged.Pool, id paged.ID) error {
					_, err := p.Free(id)
					return err
				})
			},
		})
	})
}

// TestEvictsLeavesFirst fills a pool with one chain, frees it, and takes block by
// block: what is left must always be a prefix of the chain.
func TestEvictsLeavesFirst(t *testing.T) {
	p, _ := paged.New(paged.Config{Blocks: 6, BlockTokens: 2})
	prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	hs := hashes(prompt, 2)
	tab, _ := p.Reserve(paged.Need{Hashes: hs, Tokens: 12})
	if _, err := p.Admit(tab.ID, hs); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Free(tab.ID); err != nil {
		t.Fatal(err)
	}
	for left := int32(6); left >= 0; left-- {
		again, err := p.Reserve(paged.Need{Hashes: hs, Tokens: 2 * left})
		if err != nil || again.Cached != 2*left {
			t.Fatalf("%d blocks left: %+v %v", left, again, err)
		}
		if _, err := p.Free(again.ID); err != nil {
			t.Fatal(err)
		}
		if left == 0 {
			break
		}
		if _, err := p.Reserve(paged.Need{Tokens: 2}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAdmitSharesKnownPrefix(t *testing.T) {
	p, _ := paged.New(paged.Config{Blocks: 4, BlockTokens: 2})
	prompt := []int32{1, 2, 3, 4}
	hs := hashes(prompt, 2)
	a, _ := p.Reserve(paged.Need{Hashes: hs, Tokens: 4})
	b, _ := p.Reserve(paged.Need{Hashes: hs, Tokens: 4})
	a, _ = p.Admit(a.ID, hs)
	b, err := p.Admit(b.ID, hs)
	if err != nil || !slices.Equal(a.Blocks, b.Blocks) {
		t.Fatalf("%+v %+v %v", a, b, err)
	}
	if s := p.Stats(); s.Free != 2 || s.Held != 2 {
		t.Fatalf("%+v", s)
	}
}

func TestRefusals(t *testing.T) {
	if _, err := paged.New(paged.Config{Blocks: 0, BlockTokens: 1}); !errors.Is(err, paged.ErrConfig) {
		t.Error(err)
	}
	p, _ := paged.New(paged.Config{Blocks: 2, BlockTokens: 2})
	for _, n := range []paged.Need{{Tokens: 5}, {Tokens: -1}, {Continuation: 3}, {Slot: true}, {Tokens: 1<<31 - 1, Continuation: 1<<31 - 1}} {
		if _, err := p.Reserve(n); !errors.Is(err, paged.ErrNever) {
			t.Errorf("%+v: %v", n, err)
		}
	}
	if _, err := p.Free(7); !errors.Is(err, paged.ErrHold) {
		t.Error(err)
	}
	a, _ := p.Reserve(paged.Need{Tokens: 3})
	if _, err := p.Admit(a.ID, []uint64{1, 2}); !errors.Is(err, paged.ErrHold) {
		t.Errorf("a hash for an incomplete block: %v", err)
	}
}

// What is forgotten is what no hold has: the cache starts anew behind it.
func TestForget(t *testing.T) {
	p, _ := paged.New(paged.Config{Blocks: 6, BlockTokens: 2})
	hs := hashes([]int32{1, 2, 3, 4, 5, 6}, 2)
	long, _ := p.Reserve(paged.Need{Hashes: hs, Tokens: 6})
	long, _ = p.Admit(long.ID, hs)
	short, _ := p.Reserve(paged.Need{Hashes: hs[:1], Tokens: 2}) // holds the first block of it
	if _, err := p.Free(long.ID); err != nil {
		t.Fatal(err)
	}
	if s := p.Stats(); s.Idle != 2 || s.Held != 1 {
		t.Fatalf("%+v", s)
	}
	p.Forget()
	if s := p.Stats(); s.Idle != 0 || s.Held != 1 || s.Free != 5 {
		t.Errorf("%+v", s)
	}
	again, err := p.Reserve(paged.Need{Hashes: hs, Tokens: 6})
	if err != nil || again.Cached != 2 || again.Blocks[0] != short.Blocks[0] {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestSettledBehindAKnownBlock: a settled table whose beginning another hold has in the cache
// keeps what comes behind it uncached too: else that beginning, once unused, could never be
// evicted, and its blocks would be counted as available all the same.
func TestSettledBehindAKnownBlock(t *testing.T) {
	p, err := paged.New(paged.Config{Blocks: 4, BlockTokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8}
	h := hashes(prompt, 4)
	reserve := func(hs []uint64, tokens int32) paged.Table {
		t.Helper()
		x, err := p.Reserve(paged.Need{Hashes: hs, Tokens: tokens})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	long, short := reserve(h, 8), reserve(h[:1], 4)
	if err := p.Settle(long.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Admit(short.ID, h[:1]); err != nil {
		t.Fatal(err)
	}
	if x, err := p.Admit(long.ID, h); err != nil || !slices.Equal(x.Blocks, long.Blocks) {
		t.Fatalf("admitted %v, %v; it was settled with %v", x.Blocks, err, long.Blocks)
	}
	if _, err := p.Free(short.ID); err != nil {
		t.Fatal(err)
	}
	if n := p.Available(); n != 2 {
		t.Fatalf("%d blocks are available, want 2", n)
	}
	reserve(nil, 8) // evicts what short had
}
