package blockhash_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/batonkv/baton/sidecar/engine/blockhash"
	"pgregory.net/rapid"
)

type vector struct {
	Name      string   `json:"name"`
	Tokens    []int32  `json:"tokens"`
	BlockSize int32    `json:"block_size"`
	Hashes    []uint64 `json:"hashes"`
}

// load reads the golden chains: testdata, or the directory that BATON_GOLDEN names.
// A directory that holds other kinds only skips this one.
func load(t *testing.T) []vector {
	dir, given := os.LookupEnv("BATON_GOLDEN")
	if !given || dir == "" {
		dir = "testdata"
	}
	paths, err := filepath.Glob(filepath.Join(dir, "aux_block_hashes*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		if all, _ := filepath.Glob(filepath.Join(dir, "*.json")); len(all) == 0 {
			t.Fatalf("%s holds no golden vector of any kind", dir)
		}
		t.Skipf("%s holds no aux_block_hashes", dir)
	}
	var out []vector
	for _, p := range paths {
		raw, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		var f struct {
			Cases []vector `json:"cases"`
		}
		if err := json.Unmarshal(raw, &f); err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		if len(f.Cases) == 0 {
			t.Fatalf("%s holds no case", p)
		}
		out = append(out, f.Cases...)
	}
	return out
}

func TestGolden(t *testing.T) {
	for _, v := range load(t) {
		t.Run(v.Name, func(t *testing.T) {
			got, err := blockhash.Hashes(v.Tokens, v.BlockSize, 0)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, v.Hashes) {
				t.Fatalf("got %v, want %v", got, v.Hashes)
			}
		})
	}
}

func TestPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.Int32Range(1, 130).Draw(t, "block")
		tokens := rapid.SliceOfN(rapid.Int32(), 0, 400).Draw(t, "tokens")
		whole, err := blockhash.Hashes(tokens, block, 0)
		if err != nil {
			t.Fatal(err)
		}
		c, _ := blockhash.New(block)
		var got []uint64
		for rest := tokens; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			got, rest = c.Append(got, rest[:n]), rest[n:]
		}
		if !slices.Equal(got, whole) {
			t.Fatalf("in pieces %v, at once %v", got, whole)
		}
		if c.Open() != int32(len(tokens))%block {
			t.Fatalf("open %d of %d tokens", c.Open(), len(tokens))
		}
		for _, h := range got {
			if h == 0 || h > 1<<63-1 {
				t.Fatalf("hash %d outside [1, 2^63-1]", h)
			}
		}
	})
}

func TestEpochSalts(t *testing.T) {
	tokens := []int32{1, 2, 3, 4}
	a, _ := blockhash.Hashes(tokens, 2, 0)
	b, _ := blockhash.Hashes(tokens, 2, 1)
	c, _ := blockhash.Hashes(tokens, 2, 2)
	if a[0] == b[0] || b[0] == c[0] || a[1] == b[1] || b[1] == c[1] {
		t.Fatalf("epochs share hashes: %v %v %v", a, b, c)
	}
}

func TestBadBlock(t *testing.T) {
	for _, n := range []int32{-1, 0, blockhash.MaxBlockTokens + 1} {
		if _, err := blockhash.New(n); !errors.Is(err, blockhash.ErrBlock) {
			t.Errorf("block %d: %v", n, err)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	c, _ := blockhash.New(16)
	tokens := make([]int32, 160)
	dst := make([]uint64, 0, 10)
	if n := testing.AllocsPerRun(100, func() { dst = c.Append(dst[:0], tokens) }); n != 0 {
		t.Fatalf("%v allocations per ten blocks", n)
	}
}
