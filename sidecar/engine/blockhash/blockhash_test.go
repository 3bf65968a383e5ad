package blockhash_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/batonkv/baton/sidecar/engine/blockhash"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/golden"
	"pgregory.net/rapid"
)

type vector struct {
	Name      string   `json:"name"`
	Tokens    []int32  `json:"tokens"`
	BlockSize int32    `json:"block_size"`
	Hashes    []uint64 `json:"hashes"`
}

func TestGolden(t *testing.T) {
	for _, file := range golden.Read(t, "testdata", "aux_block_hashes") {
		t.Run(file.Name, func(t *testing.T) {
			cases := golden.Decode[struct{ Cases []vector }](t, file).Cases
			if len(cases) == 0 {
				t.Fatal("no case")
			}
			for _, v := range cases {
				got, err := blockhash.Hashes(v.Tokens, v.BlockSize, blockhash.Salt{})
				if err != nil || !slices.Equal(got, v.Hashes) {
					t.Errorf("%s: got %v %v, want %v", v.Name, got, err, v.Hashes)
				}
			}
		})
	}
}

func TestPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.Int32Range(1, 130).Draw(t, "block")
		tokens := rapid.SliceOfN(rapid.Int32(), 0, 400).Draw(t, "tokens")
		whole, err := blockhash.Hashes(tokens, block, blockhash.Salt{})
		if err != nil {
			t.Fatal(err)
		}
		c, _ := blockhash.New(block, blockhash.Salt{})
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

// Salts that differ in one field, or in where one field ends, share no hash.
func TestSalts(t *testing.T) {
	salts := []blockhash.Salt{{}, {Model: "ab"}, {Model: "a", LoRA: "b"}, {LoRA: "ab"}, {Namespace: "ab"}, {LoRA: "a", Namespace: "b"},
		{Media: [32]byte{1}}, {Media: [32]byte{31: 1}}, {WeightsEpoch: 1}, {WeightsEpoch: 256}, {Model: "ab", WeightsEpoch: 1}}
	seen := map[uint64]blockhash.Salt{}
	for _, s := range salts {
		hashes, err := blockhash.Hashes([]int32{1, 2, 3, 4}, 2, s)
		if err != nil || len(hashes) != 2 {
			t.Fatal(hashes, err)
		}
		for _, h := range hashes {
			if o, ok := seen[h]; ok {
				t.Errorf("%+v and %+v share hash %d", s, o, h)
			}
			seen[h] = s
		}
	}
}

func TestFor(t *testing.T) {
	m := handoff.ModelIdentity{Name: "m", WeightsEpoch: 7}
	s := handoff.Salt{LoRA: "l", Namespace: "n", Media: handoff.Digest{3}}
	want := blockhash.Salt{Model: "m", LoRA: "l", Namespace: "n", Media: [32]byte{3}, WeightsEpoch: 7}
	for _, p := range []handoff.WeightsPolicy{0, handoff.WeightsRefuse} {
		if got := blockhash.For(m, p, s); got != want {
			t.Errorf("policy %d: %+v", p, got)
		}
	}
	want.WeightsEpoch = 0
	if got := blockhash.For(m, handoff.WeightsAllow, s); got != want {
		t.Errorf("allow: %+v", got)
	}
}

func TestBadBlock(t *testing.T) {
	for _, n := range []int32{-1, 0, blockhash.MaxBlockTokens + 1} {
		if _, err := blockhash.New(n, blockhash.Salt{}); !errors.Is(err, blockhash.ErrBlock) {
			t.Errorf("block %d: %v", n, err)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	c, _ := blockhash.New(16, blockhash.Salt{})
	tokens := make([]int32, 160)
	dst := make([]uint64, 0, 10)
	if n := testing.AllocsPerRun(100, func() { dst = c.Append(dst[:0], tokens) }); n != 0 {
		t.Fatalf("%v allocations per ten blocks", n)
	}
}
