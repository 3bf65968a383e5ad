package demo

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/internal/pause"
)

// victim is the group, by its place, and the rank that Kill names; -1 when it names none.
func (o Options) victim() (group int, rank int32, err error) {
	if o.Kill == "" {
		return -1, 0, nil
	}
	name, num, _ := strings.Cut(o.Kill, "/")
	group = slices.IndexFunc(o.Dev.Groups, func(g dev.Group) bool { return g.Name == name })
	n, err := strconv.ParseInt(num, 10, 32)
	if group < 0 || err != nil || n < 0 || int32(n) >= o.Dev.Groups[group].Size() {
		return 0, 0, fmt.Errorf("%w: --kill %q: want GROUP/RANK of a rank that is started, such as %s/0", ErrOptions, o.Kill, o.Dev.Groups[0].Name)
	}
	return group, int32(n), nil
}

// strike kills the sidecar that Kill names, once, while the hand-off of request i is held
// at its source.
func (d *demo) strike(ctx context.Context, i int) error {
	group, rank, err := d.opt.victim()
	if err != nil || group < 0 || d.struck || i != len(prompts(d.opt.Dev.BlockTokens))/2 {
		return err
	}
	d.struck = true
	g := d.cluster.Groups[group]
	old, began := d.cluster.Sidecar(g, rank), time.Now()
	now, err := d.cluster.KillSidecar(ctx, g, rank)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "     killed the sidecar of %s/%d, pid %d, while %s was handed over; pid %d took its place after %.1f s\n",
		g.Name, rank, old.PID, label(i), now.PID, time.Since(began).Seconds())
	return nil
}

// watchAgain goes on with a leader that is started again.
func (d *demo) watchAgain(ctx context.Context, g *dev.Running) error {
	pause.For(ctx, 50*time.Millisecond)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return d.watch(ctx, g)
}
