package sim

import (
	"fmt"
	"io"

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
