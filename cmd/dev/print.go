package dev

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/batonkv/baton/transfer/planview"
)

// Print shows what is up and where.
func (c *Cluster) Print(w io.Writer) {
	fmt.Fprintf(w, "etcd %s   NATS %s   files %s\n\n", c.Etcd, c.NATS, c.Dir)
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	defer t.Flush()
	if c.opt.NoEngines {
		fmt.Fprintln(t, "group\trank\tsidecar\tpid\tmetrics\tmover\trun directory")
		for _, g := range c.Groups {
			for n, k := range g.Ranks {
				fmt.Fprintf(t, "%s\t%d of %d\t%s\t%d\t%s\t%d\t%s\n", g.Name, n, g.Size(), k.Sidecar.Addr, k.Sidecar.PID, k.Sidecar.Metrics,
					k.Sidecar.MoverPID, k.Sidecar.Engine)
			}
		}
		return
	}
	fmt.Fprintln(t, "group\trank\tsidecar\tpid\tmetrics\tmover\tengine\tKV\tstate\tfront")
	for _, g := range c.Groups {
		for n, k := range g.Ranks {
			fmt.Fprintf(t, "%s\t%d of %d\t%s\t%d\t%s\t%d\t%d\t%s\t%s\t%s\n", g.Name, n, g.Size(), k.Sidecar.Addr, k.Sidecar.PID, k.Sidecar.Metrics,
				k.Sidecar.MoverPID, k.Engine.PID, planview.Size(k.Engine.KVBytes), planview.Size(k.Engine.State), k.Engine.Front)
		}
	}
}

// up is the line of PrintJSON.
type up struct {
	Dir     string   `json:"dir"`
	Etcd    string   `json:"etcd"`
	NATS    string   `json:"nats"`
	Control string   `json:"control"`
	Ranks   []upRank `json:"ranks"`
}

type upRank struct {
	Group    string `json:"group"`
	Role     string `json:"role"`
	Rank     int    `json:"rank"`
	Ranks    int32  `json:"ranks"`
	RunDir   string `json:"run_dir"`
	Addr     string `json:"addr"`
	Metrics  string `json:"metrics"`
	PID      int    `json:"pid"`
	MoverPID int    `json:"mover_pid"`
	Front    string `json:"front,omitempty"`
}

// PrintJSON says the same to programs, in one line: an object whose ranks have, among others,
// run_dir, the directory to attach an engine to.
func (c *Cluster) PrintJSON(w io.Writer) error {
	u := up{Dir: c.Dir, Etcd: c.Etcd, NATS: c.NATS, Control: c.Control()}
	for _, g := range c.Groups {
		for n, k := range g.Ranks {
			s := k.Sidecar
			u.Ranks = append(u.Ranks, upRank{g.Name, string(g.Role), n, g.Size(), s.Engine, s.Addr, s.Metrics, s.PID, s.MoverPID, k.Engine.Front})
		}
	}
	return json.NewEncoder(w).Encode(u)
}
