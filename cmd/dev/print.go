package dev

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/batonkv/baton/transfer/planview"
)

// Print shows what is up and where.
func (c *Cluster) Print(w io.Writer) {
	fmt.Fprintf(w, "etcd %s   NATS %s   files %s\n\n", c.Etcd, c.NATS, c.Dir)
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "group\trank\tsidecar\tpid\tmetrics\tmover\tengine\tKV\tstate\tfront")
	for _, g := range c.Groups {
		for n, k := range g.Ranks {
			fmt.Fprintf(t, "%s\t%d of %d\t%s\t%d\t%s\t%d\t%d\t%s\t%s\t%s\n", g.Name, n, g.Size(), k.Sidecar.Addr, k.Sidecar.PID, k.Sidecar.Metrics,
				k.Sidecar.MoverPID, k.Engine.PID, planview.Size(k.Engine.KVBytes), planview.Size(k.Engine.State), k.Engine.Front)
		}
	}
	t.Flush()
}
