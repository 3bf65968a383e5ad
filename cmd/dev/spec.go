// Package dev brings a whole Baton up on one machine: etcd and NATS in this
// process, sidecars, movers and reference engines as its children. It stops them in
// reverse, and they end with it however it ends.
package dev

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/discovery"
)

// ErrSpec reports a wrong --inference-shards.
var ErrSpec = errors.New("inference-shards")

// Group is one engine instance to start.
type Group struct {
	Name string // prefill-0
	Role discovery.Role
	TP   int32
}

// maxShards bounds the ranks of all groups together.
const maxShards = 64

var shardKeys = []string{"tp", "pp", "ep", "expt_tp", "dp", "role"}

// ParseShards reads shard groups as the reference spells them:
//
//	tp=2,role=prefill+tp=1,dp=2,role=decode
//
// Each group has a role and tp, and dp makes as many groups of it. The reference
// engine has no pipeline or expert parallelism, so pp, ep and expt_tp must be 1.
func ParseShards(spec string) ([]Group, error) {
	var out []Group
	count := map[discovery.Role]int{}
	total := int32(0)
	for i, part := range strings.Split(spec, "+") {
		v := map[string]int32{"tp": 1, "pp": 1, "ep": 1, "expt_tp": 1, "dp": 1}
		role, given := discovery.Role(""), map[string]bool{}
		for _, kv := range strings.Split(part, ",") {
			key, val, ok := strings.Cut(strings.TrimSpace(kv), "=")
			if _, known := v[key]; !ok || !known && key != "role" {
				return nil, fmt.Errorf("%w: %q in group %d: want KEY=VALUE of %s%s", ErrSpec, kv, i+1,
					strings.Join(shardKeys, ", "), suggest(key))
			}
			if given[key] {
				return nil, fmt.Errorf("%w: %s is given twice in group %d", ErrSpec, key, i+1)
			}
			given[key] = true
			if key == "role" {
				role = discovery.Role(val)
				continue
			}
			n, err := strconv.ParseInt(val, 10, 32)
			if err != nil || n < 1 || n > maxShards {
				return nil, fmt.Errorf("%w: %s=%q in group %d: want a number from 1 to %d", ErrSpec, key, val, i+1, maxShards)
			}
			v[key] = int32(n)
		}
		if role != discovery.Prefill && role != discovery.Decode {
			return nil, fmt.Errorf("%w: role=%q in group %d: want prefill or decode", ErrSpec, role, i+1)
		}
		for _, k := range []string{"pp", "ep", "expt_tp"} {
			if v[k] != 1 {
				return nil, fmt.Errorf("%w: %s=%d in group %d: the reference engine has tensor parallelism alone: leave %s out", ErrSpec, k, v[k], i+1, k)
			}
		}
		for range v["dp"] {
			out = append(out, Group{Name: fmt.Sprintf("%s-%d", role, count[role]), Role: role, TP: v["tp"]})
			count[role]++
			total += v["tp"]
		}
	}
	if total > maxShards {
		return nil, fmt.Errorf("%w: %d ranks in all, at most %d", ErrSpec, total, maxShards)
	}
	return out, nil
}

func suggest(key string) string {
	if near := config.Nearest(key, shardKeys); near != "" {
		return fmt.Sprintf(" (did you mean %q?)", near)
	}
	return ""
}
