package client

import (
	"fmt"

	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/sidecar/blocks"
	"github.com/batonkv/baton/sidecar/handoff"
)

const (
	// tellAhead bounds the messages of block events in a session's queue: the rest waits in the
	// cache, where it is overtaken by nothing and may be replaced by a snapshot.
	tellAhead = 2
	// tellWeight ends a message of block events.
	tellWeight = 1 << 18
)

// telling is what the sidecar is told of the engine's prefix cache. Client.mu guards it.
type telling struct {
	cache  *blocks.Cache  // nil: the engine tells none
	on     bool           // the sidecar asked
	reader *blocks.Reader // of the sidecar; another one for each time that it asks
	making *blocks.Reader // is made ready by a goroutine, which has it alone meanwhile
	queued int            // messages in the session's queue
}

func newTelling(a handoff.Attach) telling {
	if !a.TellsBlocks {
		return telling{}
	}
	return telling{cache: blocks.New(a.Capacity.Blocks), reader: &blocks.Reader{}}
}

// hush begins a session: its sidecar has not asked.
func (t *telling) hush() { *t = telling{cache: t.cache, reader: &blocks.Reader{}} }

// asked takes the sidecar's wish. Caller holds mu.
func (c *Client) asked(m handoff.TellBlocks) {
	c.telling.on, c.telling.reader = m.On && c.telling.cache != nil, &blocks.Reader{}
	c.tell()
}

// changed takes what changed in the engine's prefix cache.
func (c *Client) changed(m handoff.BlockEvents) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.over(); err != nil {
		return err
	}
	if c.telling.cache == nil {
		return fmt.Errorf("%w: it tells of blocks, and Attach does not say TellsBlocks", handoff.ErrEngine)
	}
	for _, e := range m.Events {
		if err := blocks.Check(e); err != nil {
			return err
		}
	}
	for _, e := range m.Events {
		if err := c.telling.cache.Apply(e); err != nil {
			return err
		}
	}
	c.tell()
	return nil
}

// tell queues what the sidecar has not heard, as far as the queue is its own. Caller holds mu.
func (c *Client) tell() {
	t := &c.telling
	for t.on && c.ses != nil && t.queued < tellAhead && t.making != t.reader {
		if !t.reader.Ready() {
			c.prepare(t.reader)
			return
		}
		var m handoff.BlockEvents
		for weight := 0; weight < tellWeight && len(m.Events) < codec.MaxEvents && t.reader.Ready(); {
			e, ok := t.cache.Read(t.reader)
			if !ok {
				break
			}
			m.Events = append(m.Events, e)
			weight += blocks.Weight(e)
		}
		if len(m.Events) == 0 {
			return
		}
		p, err := codec.EncodeFromEngine(m)
		if err == nil {
			err = c.ses.out.Send(p)
		}
		if err != nil {
			t.on = false // the session has ended; the next one asks anew
			return
		}
		t.queued++
	}
}

// prepare makes r ready aside, as a large cache takes a second or more, for which an engine's
// step is not to wait; then tell goes on. Caller holds mu.
func (c *Client) prepare(r *blocks.Reader) {
	c.telling.making = r
	c.wg.Go(func() {
		r.Prepare()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.telling.making == r {
			c.telling.making = nil
			c.tell()
		}
	})
}

// told says that a message of block events went out on s.
func (c *Client) told(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ses == s {
		c.telling.queued--
		c.tell()
	}
}
