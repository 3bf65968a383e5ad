package sim

import (
	_ "embed"
	"fmt"
	"io"
	"strings"

	"github.com/batonkv/baton/sidecar/machine"
)

// Coverage counts what schedules met: each kind of fault, and each pair of a half's
// state and what reached it.
type Coverage struct {
	Faults [numFaults]uint64
	Pairs  [machine.NumPairs]uint64
}

func (c *Coverage) meet(ps []machine.Pair) {
	for _, p := range ps {
		c.Pairs[p]++
	}
}

func (c *Coverage) add(o *Coverage) {
	for i, n := range o.Faults {
		c.Faults[i] += n
	}
	for i, n := range o.Pairs {
		c.Pairs[i] += n
	}
}

// Print lists every count.
func (c *Coverage) Print(out io.Writer) {
	for f, n := range c.Faults {
		fmt.Fprintf(out, "fault %-32v %d\n", Fault(f), n)
	}
	for p, n := range c.Pairs {
		fmt.Fprintf(out, "pair  %-40v %d\n", machine.Pair(p), n)
	}
}

// Points is how many faults and pairs there are.
const Points = int(numFaults) + machine.NumPairs

// never lists the pairs that cannot happen, or hardly: half, states and inputs, each with commas
// or * for all, a colon, and the reason.
//
//go:embed never.txt
var never string

// Never returns the pairs that cannot happen, or hardly, with the reasons.
func Never() map[machine.Pair]string {
	out := map[machine.Pair]string{}
	for line := range strings.Lines(never) {
		where, why, ok := strings.Cut(strings.TrimSpace(line), ": ")
		f := strings.Fields(where)
		if !ok || len(f) != 3 || f[0][0] == '#' {
			continue
		}
		for p := range machine.Pair(machine.NumPairs) {
			if w := strings.Fields(p.String()); w[0] == f[0] && among(f[1], w[1]) && among(f[2], w[2]) {
				out[p] = why
			}
		}
	}
	return out
}

func among(list, word string) bool {
	return list == "*" || strings.Contains(","+list+",", ","+word+",")
}

// Missed says which faults and pairs were met less often than need, and which pairs were
// met that cannot happen.
func (c *Coverage) Missed(need uint64) (out []string) {
	cannot := Never()
	for f, n := range c.Faults {
		if n < need {
			out = append(out, fmt.Sprintf("fault %v: %d times, want %d", Fault(f), n, need))
		}
	}
	for i, n := range c.Pairs {
		p := machine.Pair(i)
		switch why, ok := cannot[p]; {
		case strings.HasPrefix(why, "hardly: "):
		case strings.HasPrefix(why, "rare: "):
			if n < need/10 {
				out = append(out, fmt.Sprintf("pair %v: %d times, want %d", p, n, need/10))
			}
		case ok && n > 0:
			out = append(out, fmt.Sprintf("pair %v: %d times, and it cannot happen: %s", p, n, why))
		case !ok && n < need:
			out = append(out, fmt.Sprintf("pair %v: %d times, want %d", p, n, need))
		}
	}
	return out
}
