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
	// Element types of the engines' state; 0: the engine's own choice.
	KV, Conv, SSM layout.DType
}

// Typed reports whether the group states a type.
func (g Group) Typed() bool { return g.KV != 0 || g.Conv != 0 || g.SSM != 0 }

// maxShards bounds the ranks of all groups together.
const maxShards = 64

var shardKeys = []string{"tp", "pp", "ep", "expt_tp", "dp", "role", "kv", "state", "conv", "ssm"}

// ParseShards reads shard groups as the reference spells them:
//
//	tp=2,role=prefill+tp=1,dp=2,role=decode
//
// Each group has a role and tp, and dp makes as many groups of it. The reference
// engine has no pipeline or expert parallelism, so pp, ep and expt_tp must be 1. Element
// types are kv=bf16|fp16|fp32, and conv and ssm, or state for both, fp32|bf16.
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
			total += g.TP
		}
	}
	if total > maxShards {
		return nil, fmt.Errorf("%w: %d ranks in all, at most %d", ErrSpec, total, maxShards)
	}
	return out, nil
}

// parseGroup reads the at-th group, which is there dp times.
func parseGroup(part string, at int) (g Group, dp int32, err error) {
	v := map[string]int32{"tp": 1, "pp": 1, "ep": 1, "expt_tp": 1, "dp": 1}
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
		if _, number := v[key]; number {
			n, err := strconv.ParseInt(val, 10, 32)
			if err != nil || n < 1 || n > maxShards {
				return g, 0, fmt.Errorf("%w: %s=%q in group %d: want a number from 1 to %d", ErrSpec, key, val, at, maxShards)
			}
			v[key] = int32(n)
		} else if key == "role" {
			g.Role = discovery.Role(val)
		} else if err := g.setType(key, val); err != nil {
			return g, 0, fmt.Errorf("%w: %s=%q in group %d: %w", ErrSpec, key, val, at, err)
		}
	}
	if g.Role != discovery.Prefill && g.Role != discovery.Decode {
		return g, 0, fmt.Errorf("%w: role=%q in group %d: want prefill or decode", ErrSpec, g.Role, at)
	}
	for _, k := range []string{"pp", "ep", "expt_tp"} {
		if v[k] != 1 {
			return g, 0, fmt.Errorf("%w: %s=%d in group %d: the reference engine has tensor parallelism alone: leave %s out", ErrSpec, k, v[k], at, k)
		}
	}
	for _, k := range []string{"conv", "ssm"} {
		if given[k] && given["state"] {
			return g, 0, fmt.Errorf("%w: %s and state in group %d: state is both types at once: give conv and ssm, or state", ErrSpec, k, at)
		}
	}
	g.TP = v["tp"]
	return g, v["dp"], nil
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
