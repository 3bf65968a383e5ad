// Package planview explains a re-shard: who sends what to whom, how many bytes, in
// how many copies. It computes and formats; reading files and flags is its caller's.
package planview

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
)

// ErrInput reports a request that cannot be: a bad side, file or number.
var ErrInput = errors.New("plan: bad input")

// Side is one group's parallelism and memory.
type Side struct {
	Cut   parallel.Cut
	Mem   parallel.Memory
	given string
}

func (s Side) String() string { return s.given }

// Default is what a side has when its text does not say otherwise.
type Default struct {
	Block int32        // tokens a block
	KV    layout.DType // of paged states and convolutions; recurrent state is fp32
}

// orders are the words for parallel.Order.
var orders = map[string]parallel.Order{"planes": parallel.Planes, "layers": parallel.LayerPlanes,
	"layerblocks": parallel.LayerBlocks, "blocks": parallel.BlockMajor}

// ParseSide reads "tp=4,pp=2": keys tp, pp, ep, expt_tp, and for its memory block,
// dtype, order (planes, layers, layerblocks, blocks), heads (first, last), columns.
func ParseSide(s string, d Default) (Side, error) {
	out := Side{given: s, Mem: parallel.Memory{BlockTokens: d.Block, KV: d.KV, Conv: d.KV, SSM: layout.F32}}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || value == "" {
			return out, fmt.Errorf("%w: %q in %q: want key=value, as in tp=4,pp=2", ErrInput, part, s)
		}
		if seen[key] {
			return out, fmt.Errorf("%w: %s is given twice in %q", ErrInput, key, s)
		}
		seen[key] = true
		if err := out.set(key, value); err != nil {
			return out, fmt.Errorf("%w: %w in %q", ErrInput, err, s)
		}
	}
	if err := out.Cut.Check(); err != nil {
		return out, fmt.Errorf("%w: %w", ErrInput, err)
	}
	return out, nil
}

func (s *Side) set(key, value string) error {
	number := func(p *int32) error {
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < 1 || n > layout.MaxRank {
			return fmt.Errorf("%s=%s: want a number from 1 to %d", key, value, layout.MaxRank)
		}
		*p = int32(n)
		return nil
	}
	switch key {
	case "tp":
		return number(&s.Cut.TP)
	case "pp":
		return number(&s.Cut.PP)
	case "ep":
		return number(&s.Cut.EP)
	case "expt_tp":
		return number(&s.Cut.ExptTP)
	case "block":
		return number(&s.Mem.BlockTokens)
	case "columns":
		return number(&s.Mem.Columns)
	case "dtype":
		d, err := layout.ParseDType(value)
		s.Mem.KV, s.Mem.Conv = d, d
		return err
	case "order":
		o, ok := orders[value]
		if !ok {
			return fmt.Errorf("order=%s: want planes, layers, layerblocks or blocks", value)
		}
		s.Mem.Order = o
		return nil
	case "heads":
		if value != "first" && value != "last" {
			return fmt.Errorf("heads=%s: want first or last", value)
		}
		s.Mem.HeadsFirst = value == "first"
		return nil
	}
	return fmt.Errorf("unknown key %q: want tp, pp, ep, expt_tp, block, dtype, order, heads or columns", key)
}

// pool gives s as many blocks and slots as one request can need, and room to
// scatter them.
func (s *Side) pool(tokens int32) {
	s.Mem.Blocks = 2*((tokens+s.Mem.BlockTokens-1)/s.Mem.BlockTokens) + 1
	s.Mem.Slots = 2
}
