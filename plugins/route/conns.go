package route

import (
	"crypto/tls"
	"errors"
	"fmt"
	"sync"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/control/client"
	"github.com/batonkv/baton/sidecar/handoff"
)

// conns are the connections to leaders, one a group.
type conns struct {
	tls  func(discovery.Record) *tls.Config
	idle int // connections without a call that are kept

	mu   sync.Mutex       // guards, with what a conn says:
	open map[string]*conn // by group, the newest leader's
	all  map[*conn]bool   // also those that a call still uses
	uses uint64
	over bool
}

// conn is a connection to one process.
type conn struct {
	group  string
	leader process
	client *client.Client

	calls int
	last  uint64 // use
	gone  bool   // closed after its last call
}

// process is what a connection leads to.
type process struct {
	addr        string
	incarnation uint64
}

func processOf(r discovery.Record) process { return process{r.Addr, r.Incarnation} }

func newConns(idle int, tls func(discovery.Record) *tls.Config) *conns {
	return &conns{tls: tls, idle: idle, open: map[string]*conn{}, all: map[*conn]bool{}}
}

// take is a connection to the process of r, for one call.
func (cs *conns) take(r discovery.Record) (*conn, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.over {
		return nil, fmt.Errorf("%w: this router was closed", handoff.ErrHost)
	}
	c := cs.open[r.Group]
	if c == nil || c.leader != processOf(r) {
		cl, err := client.Dial(r.Addr, cs.tls(r))
		if err != nil {
			return nil, err
		}
		cs.drop(c)
		c = &conn{group: r.Group, leader: processOf(r), client: cl}
		cs.open[r.Group], cs.all[c] = c, true
	}
	c.calls++
	cs.uses++
	c.last = cs.uses
	return c, nil
}

// give ends a call that met err. A process that did not answer is dialled anew the next
// time, and not when the connection itself finds it worth another attempt.
func (cs *conns) give(c *conn, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.calls--
	if err != nil && !errs.Spoken(err) {
		cs.drop(c)
	}
	cs.shut(c)
	for idle := cs.unused(); len(idle) > cs.idle; idle = idle[1:] {
		cs.drop(idle[0])
	}
}

// unused are the connections without a call, the longest unused first.
func (cs *conns) unused() (idle []*conn) {
	if len(cs.open) <= cs.idle {
		return nil
	}
	for _, c := range cs.open {
		if c.calls > 0 {
			continue
		}
		at := len(idle)
		for at > 0 && idle[at-1].last > c.last {
			at--
		}
		idle = append(idle[:at], append([]*conn{c}, idle[at:]...)...)
	}
	return idle
}

// drop lets go of a connection; it is closed when no call is on it.
func (cs *conns) drop(c *conn) {
	if c == nil {
		return
	}
	if cs.open[c.group] == c {
		delete(cs.open, c.group)
	}
	c.gone = true
	cs.shut(c)
}

func (cs *conns) shut(c *conn) {
	if c.gone && c.calls == 0 && cs.all[c] {
		delete(cs.all, c)
		_ = c.client.Close() // says only that it was closed before
	}
}

// keep drops the connections to what is no leader in s.
func (cs *conns) keep(s *snapshot) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for group, c := range cs.open {
		if r, ok := s.leaders[group]; !ok || processOf(r) != c.leader {
			cs.drop(c)
		}
	}
}

// close ends every connection and the calls on it.
func (cs *conns) close() (err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.over = true
	for c := range cs.all {
		err = errors.Join(err, c.client.Close())
	}
	clear(cs.all)
	clear(cs.open)
	return err
}
