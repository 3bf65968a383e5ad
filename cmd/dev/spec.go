// Package dev brings a whole Baton up on one machine: etcd and NATS in this
// process, sidecars, movers and reference engines as its children. It stops them in
// reverse, and they end with it however it ends.
package dev

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/transfer/layout"
)

// ErrSpec reports a wrong --inference-shards.
var ErrSpec = errors.New("inference-shards")

// Group is one engine instance to start.
type Group struct {
	Name string // prefill-0
	Role discovery.Role
	TP   int32
	// The other ways in which its ranks divide the model; 0: 1.
	PP, EP, ExptTP int32
	Layers         []int // model layers of each pipeline stage; nil: evenly
	// Element types of the engines' state; 0: the engine's own choice.
	KV, Conv, SSM layout.DType
}

// Size is the number of ranks.
func (g Group) Size() int32 { return max(g.TP, 1) * max(g.PP, 1) * max(g.EP, 1) * max(g.ExptTP, 1) }

// Typed reports whether the group states a type.
func (g Group) Typed() bool { return g.KV != 0 || g.Conv != 0 || g.SSM != 0 }

// maxShards bounds the ranks of all groups together, maxLayers the layers of one stage.
const (
	maxShards = 64
	maxLayers = 256
)

var shardKeys = []string{"tp", "pp", "ep", "expt_tp", "layers", "dp", "role", "kv", "state", "conv", "ssm"}

// ParseShards reads shard groups as the reference spells them:
//
//	tp=2,role=prefill+tp=1,dp=2,role=decode
//
// Each group has a role and tp, pp, ep and expt_tp, which are 1 when they are left out,
// and as many ranks as their product; dp makes as many groups of it. layers=3:1 are the
// model layers of each of pp stages. Element types are kv=bf16|fp16|fp32, and conv and
// ssm, or state for both, fp32|bf16.
func ParseShards(spec string) ([]Group, error) {
	var out []Group
	count := map[discovery.Role]int{}
	total := int32(0)
	for i, part := range strings.Split(spec, "+") {
		g, dp, err := parseGroup(part, i+1)
		if err != nil {
			return nil, err
		}
		for range dp {
			g.Name = fmt.Sprintf("%s-%d", g.Role, count[g.Role])
			out = append(out, g)
			count[g.Role]++
			if total += g.Size(); total > maxShards {
				return nil, fmt.Errorf("%w: %d ranks and more, at most %d in all", ErrSpec, total, maxShards)
			}
		}
	}
	return out, nil
}

// parseGroup reads the at-th group, which is there dp times.
func parseGroup(part string, at int) (g Group, dp int32, err error) {
	dp = 1
	numbers := map[string]*int32{"tp": &g.TP, "pp": &g.PP, "ep": &g.EP, "expt_tp": &g.ExptTP, "dp": &dp}
	for _, n := range numbers {
		*n = 1
	}
	given := map[string]bool{}
	for _, kv := range strings.Split(part, ",") {
		key, val, ok := strings.Cut(strings.TrimSpace(kv), "=")
		if !ok || !slices.Contains(shardKeys, key) {
			return g, 0, fmt.Errorf("%w: %q in group %d: want KEY=VALUE of %s%s", ErrSpec, kv, at,
				strings.Join(shardKeys, ", "), suggest(key))
		}
		if given[key] {
			return g, 0, fmt.Errorf("%w: %s is given twice in group %d", ErrSpec, key, at)
		}
		given[key] = true
		var err error
		switch {
		case numbers[key] != nil:
			*numbers[key], err = count(val)
		case key == "role":
			g.Role = discovery.Role(val)
		case key == "layers":
			g.Layers, err = stages(val)
		default:
			err = g.setType(key, val)
		}
		if err != nil {
			return g, 0, fmt.Errorf("%w: %s=%q in group %d: %w", ErrSpec, key, val, at, err)
		}
	}
	if g.Role != discovery.Prefill && g.Role != discovery.Decode {
		return g, 0, fmt.Errorf("%w: role=%q in group %d: want prefill or decode", ErrSpec, g.Role, at)
	}
	if g.Layers != nil && len(g.Layers) != int(g.PP) {
		return g, 0, fmt.Errorf("%w: layers=%d in group %d: pp=%d has as many stages: give one number for each", ErrSpec, g.Layers, at, g.PP)
	}
	for _, k := range []string{"conv", "ssm"} {
		if given[k] && given["state"] {
			return g, 0, fmt.Errorf("%w: %s and state in group %d: state is both types at once: give conv and ssm, or state", ErrSpec, k, at)
		}
	}
	return g, dp, nil
}

func count(val string) (int32, error) {
	n, err := strconv.ParseInt(val, 10, 32)
	if err != nil || n < 1 || n > maxShards {
		return 0, fmt.Errorf("want a number from 1 to %d", maxShards)
	}
	return int32(n), nil
}

// stages reads the layers of each stage, joined by colons.
func stages(val string) (out []int, err error) {
	for _, s := range strings.Split(val, ":") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxLayers || len(out) == maxShards {
			return nil, fmt.Errorf("want the layers of each stage, from 1 to %d, such as 3:1", maxLayers)
		}
		out = append(out, n)
	}
	return out, nil
}

// setType reads the element type of the state that key names.
func (g *Group) setType(key, val string) error {
	d, err := layout.ParseDType(val)
	switch {
	case key == "kv" && (err != nil || d != layout.BF16 && d != layout.F16 && d != layout.F32):
		return errors.New("want bf16, fp16 or fp32")
	case key != "kv" && (err != nil || d != layout.BF16 && d != layout.F32):
		return errors.New("want fp32 or bf16")
	}
	switch key {
	case "kv":
		g.KV = d
	case "conv":
		g.Conv = d
	case "ssm":
		g.SSM = d
	case "state":
		g.Conv, g.SSM = d, d
	}
	return nil
}

func suggest(key string) string {
	if near := config.Nearest(key, shardKeys); near != "" {
		return fmt.Sprintf(" (did you mean %q?)", near)
	}
	return ""
}
