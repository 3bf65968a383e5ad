package staged

import (
	"reflect"
	"slices"
	"testing"
)

// coder writes a world to bytes or reads it back: one visit serves both. Numbers of
// a walk are small; one that does not fit a byte ends the test.
type coder struct {
	b    []byte
	read bool
}

func (c *coder) byte(v uint8) uint8 {
	if c.read {
		v, c.b = c.b[0], c.b[1:]
		return v
	}
	c.b = append(c.b, v)
	return v
}

func num[T ~uint8 | ~uint64 | ~int32 | ~int | ~int64](c *coder, p *T) {
	v := c.byte(uint8(*p))
	if !c.read && T(v) != *p {
		panic("a number of the walk does not fit a byte")
	}
	*p = T(v)
}

func flag(c *coder, p *bool) {
	v := uint8(0)
	if *p {
		v = 1
	}
	*p = c.byte(v) == 1
}

func list[T any](c *coder, p *[]T, each func(*coder, *T)) {
	n := len(*p)
	num(c, &n)
	if c.read {
		*p = slices.Grow((*p)[:0], n)[:n]
	}
	for i := range n {
		each(c, &(*p)[i])
	}
}

func codeOf(c *coder, p *part) {
	for shift := 16; shift >= 0; shift -= 8 {
		v := uint8(*p >> shift)
		*p = *p&^(0xff<<shift) | part(c.byte(v))<<shift
	}
}

func jobCode(c *coder, j *Job) { num(c, &j.Attempt) }

func message(c *coder, p *Message) {
	var kind uint8
	var j Job
	var m [4]uint64
	switch x := (*p).(type) {
	case Want:
		kind, j, m = 1, x.Job, [4]uint64{x.Pin.ID, uint64(x.Chunks)}
	case Credit:
		kind, m = 2, [4]uint64{x.Offer}
	case Stop:
		kind, j = 3, x.Job
	case Offer:
		kind, j, m = 4, x.Job, [4]uint64{uint64(x.Seq), x.Offer, uint64(x.Chunk), uint64(x.Wire)}
	case Gone:
		kind, j, m = 5, x.Job, [4]uint64{uint64(x.Why)}
	}
	num(c, &kind)
	jobCode(c, &j)
	n := [...]int{1: 2, 2: 1, 3: 0, 4: 4, 5: 1}[kind]
	for i := range n {
		num(c, &m[i])
	}
	if !c.read {
		return
	}
	switch kind {
	case 1:
		*p = Want{j, Pin{ID: m[0]}, int32(m[1])}
	case 2:
		*p = Credit{m[0]}
	case 3:
		*p = Stop{j}
	case 4:
		*p = Offer{j, int32(m[0]), m[1], int32(m[2]), Incarnation(m[3])}
	case 5:
		*p = Gone{j, Reason(m[0])}
	}
}

func localEvent(c *coder, p *SourceEvent) {
	var kind uint8
	var g uint64
	switch x := (*p).(type) {
	case Granted:
		kind, g = 1, x.Grant
	case Refused:
		kind, g = 2, x.Grant
	case Revoked:
		kind, g = 3, x.Grant
	}
	num(c, &kind)
	num(c, &g)
	switch kind {
	case 1:
		*p = Granted{g}
	case 2:
		*p = Refused{g}
	case 3:
		*p = Revoked{g}
	}
}

func settled(c *coder, w *window) {
	num(c, &w.lo)
	num(c, &w.bits)
}

func (c *coder) source(s *Source) {
	num(c, &s.turn)
	num(c, &s.last)
	list(c, &s.peers, func(c *coder, pp **sourcePeer) {
		if *pp == nil {
			*pp = &sourcePeer{}
		}
		p := *pp
		id := 0
		if !c.read {
			id = int(p.id[0])
		}
		num(c, &id)
		p.id = dstID(id - 'a')
		flag(c, &p.up)
		flag(c, &p.killing)
		num(c, &p.wire)
		num(c, &p.held)
		list(c, &p.jobs, func(c *coder, jp **sourceJob) {
			if *jp == nil {
				*jp = &sourceJob{}
			}
			j := *jp
			jobCode(c, &j.job)
			num(c, &j.total)
			num(c, &j.next)
			settled(c, &j.settled)
			num(c, &j.grant)
			num(c, &j.leave)
		})
	})
	for i := range s.chunks {
		k := &s.chunks[i]
		if num(c, &k.state); k.state == srcFree {
			*k = sourceChunk{}
			continue
		}
		peer := slices.Index(s.peers, k.peer)
		num(c, &peer)
		k.peer = s.peers[peer]
		jobCode(c, &k.job)
		num(c, &k.seq)
		num(c, &k.grant)
		num(c, &k.offer)
		num(c, &k.wire)
		flag(c, &k.over)
		flag(c, &k.quarantined)
	}
}

func (c *coder) dest(d *Dest) {
	num(c, &d.turn)
	num(c, &d.last)
	list(c, &d.peers, func(c *coder, pp **destPeer) {
		if *pp == nil {
			*pp = &destPeer{}
		}
		p := *pp
		id := 0
		if !c.read {
			id = int(p.id[0])
		}
		num(c, &id)
		p.id = srcID(id - 'A')
		flag(c, &p.up)
		flag(c, &p.killing)
		num(c, &p.wire)
		num(c, &p.held)
		list(c, &p.jobs, func(c *coder, jp **destJob) {
			if *jp == nil {
				*jp = &destJob{}
			}
			j := *jp
			jobCode(c, &j.job)
			num(c, &j.total)
			settled(c, &j.taken)
			num(c, &j.left)
			num(c, &j.why)
		})
		list(c, &p.offers, func(c *coder, o *Offer) {
			m := Message(*o)
			message(c, &m)
			*o = m.(Offer)
		})
	})
	for i := range d.chunks {
		k := &d.chunks[i]
		if num(c, &k.state); k.state == dstFree {
			*k = destChunk{}
			continue
		}
		peer := slices.Index(d.peers, k.peer)
		num(c, &peer)
		k.peer = d.peers[peer]
		jobCode(c, &k.job)
		num(c, &k.seq)
		num(c, &k.offer)
		num(c, &k.ticket)
		num(c, &k.wire)
		flag(c, &k.over)
		flag(c, &k.quarantined)
	}
}

// TestCodecKnowsEveryField fails when a machine has a field that the walk would not see.
func TestCodecKnowsEveryField(t *testing.T) {
	known := map[reflect.Type]int{ // cfg and out are not state
		reflect.TypeFor[Source](): 6, reflect.TypeFor[sourcePeer](): 6, reflect.TypeFor[sourceJob](): 6, reflect.TypeFor[sourceChunk](): 9,
		reflect.TypeFor[Dest](): 6, reflect.TypeFor[destPeer](): 7, reflect.TypeFor[destJob](): 5, reflect.TypeFor[destChunk](): 9,
		reflect.TypeFor[Grants](): 1, reflect.TypeFor[holding](): 4, reflect.TypeFor[loan](): 2, reflect.TypeFor[window](): 2,
	}
	for typ, n := range known {
		if typ.NumField() != n {
			t.Errorf("%v has %d fields, the codec knows %d", typ, typ.NumField(), n)
		}
	}
}
