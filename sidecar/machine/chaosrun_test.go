package machine

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
)

var (
	schedules = flag.Int("schedules", 1500, "random schedules of TestRandomSchedules")
	oneSeed   = flag.Uint64("seed", 0, "run and trace this schedule alone")
)

// choice is one thing that can happen without anybody's fault.
type choice struct {
	kind choiceKind
	i, j int
}

type choiceKind uint8

const (
	ends     choiceKind = iota // act i
	arrives                    // a message from i to j
	hears                      // engine of node i
	said                       // by the engine of node i
	settles                    // ticket j of node i
	comesDue                   // node i
	steps                      // engines of group i
)

func (c *chaos) choices() []choice {
	fs := c.can[:0]
	for i := range c.acts {
		fs = append(fs, choice{ends, i, 0})
	}
	for from := range c.pipes {
		for to := range c.pipes[from] {
			if len(c.pipes[from][to].q) > 0 {
				fs = append(fs, choice{arrives, from, to})
			}
		}
	}
	for i, n := range c.nodes {
		if len(n.toEng) > 0 {
			fs = append(fs, choice{hears, i, 0})
		}
		if len(n.fromEng) > 0 {
			fs = append(fs, choice{said, i, 0})
		}
		for j, t := range n.tickets {
			if !t.stuck || c.calm {
				fs = append(fs, choice{settles, i, j})
			}
		}
		if at, ok := n.m.Next(); ok && at <= c.now {
			fs = append(fs, choice{comesDue, i, 0})
		}
	}
	for i, g := range c.groups {
		if g.alive() && (g.nodes[0].eng.applied < g.through || g.anyLetGo()) {
			fs = append(fs, choice{steps, i, 0})
		}
	}
	c.can = fs
	return fs
}

func (c *chaos) happen(x choice) {
	switch x.kind {
	case ends:
		f := c.acts[x.i]
		c.acts = slices.Delete(c.acts, x.i, x.i+1)
		f()
	case arrives:
		c.deliver(x.i, x.j)
	case hears:
		c.nodes[x.i].hear()
	case said:
		n := c.nodes[x.i]
		e := n.fromEng[0]
		n.fromEng = n.fromEng[1:]
		n.step(e)
	case settles:
		n := c.nodes[x.i]
		t := n.tickets[x.j]
		var err error
		if c.chance(12) || t.stuck {
			err = errors.New("failed")
		}
		n.settle(t, err)
	case comesDue:
		c.nodes[x.i].step(Tick{})
	case steps:
		c.groups[x.i].tick(false)
	}
}

func (g *cgroup) anyLetGo() bool {
	for _, n := range g.nodes {
		for l := range n.eng.letGo {
			switch {
			case !n.eng.hasLabel(l):
				delete(n.eng.letGo, l)
			case !slices.ContainsFunc(g.nodes, func(o *cnode) bool { return !o.eng.letGo[l] && o.eng.hasLabel(l) }):
				return true
			}
		}
	}
	return false
}

// act is what users, engines and the world do.
func (c *chaos) act() {
	switch k := c.r.IntN(100); {
	case k < 20:
		c.groups[0].labels++
		label := fmt.Sprint("r", c.groups[0].labels)
		if n := c.groups[0].nodes[0]; n.eng.ready && c.chance(25) {
			n.eng.say(handoff.Announce{Label: label})
			if c.chance(20) {
				return // and never exported
			}
		}
		c.later(func() { c.export(label) })
	case k < 50 && len(c.mans) > 0:
		c.startImport(c.mans[c.r.IntN(len(c.mans))], c.groups[1+c.r.IntN(2)])
	case k < 62:
		c.groups[1+c.r.IntN(2)].tick(true)
	case k < 68:
		a, b := c.nodes[c.r.IntN(len(c.nodes))], c.nodes[c.r.IntN(len(c.nodes))]
		if a != b {
			c.cut(a, b)
		}
	case k < 72 && len(c.mans) > 0:
		id := c.mans[c.r.IntN(len(c.mans))].ID
		c.calls++
		c.open[c.calls] = true
		n := c.groups[1+c.r.IntN(2)].nodes[0]
		n.step(Abort{c.calls, id})
	case k < 74 && len(c.mans) > 0:
		m := c.mans[c.r.IntN(len(c.mans))]
		c.calls++
		c.open[c.calls] = true
		n := c.groups[0].nodes[0]
		n.step(Release{c.calls, m.ID, m.Key})
	case k < 76:
		c.nodes[c.r.IntN(len(c.nodes))].restartMover()
	case k < 77:
		n := c.nodes[c.r.IntN(len(c.nodes))]
		n.g.relaunch(n, n.eng.session)
	case k < 80:
		c.now += time.Duration(c.r.IntN(40)) * time.Second
	default:
		c.now += time.Duration(c.r.IntN(300)) * time.Millisecond
	}
}

func (c *chaos) startImport(man handoff.Manifest, g *cgroup) Call {
	c.calls++
	call := c.calls
	c.open[call] = true
	if c.chance(3) {
		man.Key[3] ^= 1
	}
	n := g.nodes[0]
	n.step(Import{call, handoff.Import{Manifest: man, Tokens: make([]int32, max(c.tokens[man.Label], 1))}})
	return call
}

// settleDown goes on without faults until nothing is left to do.
func (c *chaos) settleDown() {
	for range 20000 {
		fs := c.choices()
		if len(fs) == 0 || c.bad != "" {
			return
		}
		c.happen(fs[c.r.IntN(len(fs))])
	}
	c.fail("does not come to rest")
}

// finish stops the faults, lets time pass, and looks for what is left.
func (c *chaos) finish() {
	c.calm = true
	for range 14 {
		c.settleDown()
		for _, g := range c.groups {
			g.tick(true)
		}
		c.now += 9 * time.Second
	}
	c.settleDown()
	for range 40 { // requests that decode come to their end
		for _, g := range c.groups {
			g.tick(true)
		}
		c.settleDown()
	}
	c.leftovers()
	c.groups[0].labels++
	label := fmt.Sprint("r", c.groups[0].labels)
	c.export(label)
	c.settleDown()
	if c.bad != "" {
		return
	}
	man := c.mans[len(c.mans)-1]
	if man.Label != label {
		c.fail("the last export shows no manifest")
	}
	was := c.ok
	c.copies[label] = 1
	c.startImport(man, c.groups[1+c.r.IntN(2)])
	c.settleDown()
	c.now += 500 * time.Millisecond // for a dial that pauses
	c.settleDown()
	if c.ok != was+1 {
		c.fail("a last hand-off does not get through")
	}
}

func (c *chaos) leftovers() {
	if len(c.open) > 0 {
		c.fail("calls without an answer: %v", c.open)
	}
	for _, n := range c.nodes {
		m := n.m
		if len(m.lead.imports)+len(m.pins)+len(m.dests)+len(m.tickets)+len(m.lead.labels)+len(m.lead.opens) > 0 {
			c.fail("%v is left with imports %d, pins %d, dests %d, tickets %d, labels %d, opens %d", n.self,
				len(m.lead.imports), len(m.pins), len(m.dests), len(m.tickets), len(m.lead.labels), len(m.lead.opens))
		}
		if m.engine == nil || n.self.Rank == 0 && m.lead.roster == nil {
			c.fail("%v: its group does not stand", n.self)
		}
		for b, o := range n.eng.own {
			if o != 0 {
				c.fail("%v: block %d is still held by %x %q", n.self, b, o, n.eng.label[b])
			}
		}
	}
}

// schedule runs one seed and returns what went wrong.
func schedule(seed uint64, keep bool) *chaos {
	c := newChaos(seed)
	c.keep = keep
	for range 60 + c.r.IntN(200) {
		if fs := c.choices(); len(fs) > 0 && c.r.IntN(8) > 0 {
			c.happen(fs[c.r.IntN(len(fs))])
		} else {
			c.act()
		}
		if c.bad != "" {
			return c
		}
	}
	c.finish()
	return c
}

func TestRandomSchedules(t *testing.T) {
	if *oneSeed != 0 {
		c := schedule(*oneSeed, true)
		t.Logf("%s\n%s", strings.Join(c.lines, "\n"), c.bad)
		if c.bad != "" {
			t.Fail()
		}
		return
	}
	admitted := 0
	for seed := uint64(1); seed <= uint64(*schedules); seed++ {
		c := schedule(seed, false)
		admitted += c.ok
		if c.bad != "" {
			t.Fatalf("seed %d: %s\nsee its trace by: go test ./sidecar/machine -run TestRandomSchedules -v -seed=%d", seed, c.bad, seed)
		}
	}
	if admitted < *schedules {
		t.Errorf("%d hand-offs in %d schedules: the test has become idle", admitted, *schedules)
	}
	t.Logf("%d hand-offs were admitted in %d schedules", admitted, *schedules)
}
