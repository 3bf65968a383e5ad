package mover

import (
	"context"
	"fmt"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/sums"
)

// maxPlaces bounds the places of one sum.
const maxPlaces = layout.MaxShards

// maxAdding bounds the sums that a mover works on at once.
const maxAdding = 64

// Sum implements transfer.Summer. While no child runs it waits for the next; one that dies
// meanwhile is ErrMover, and the sum may be asked for again.
func (m *Mover) Sum(ctx context.Context, j *sums.Job) ([]uint64, error) {
	if len(j.Blocks) > maxBlocks || len(j.Places) > maxPlaces {
		return nil, m.fail("sum", "", fmt.Errorf("%w: %d blocks and %d places: at most %d and %d", transfer.ErrBounds,
			len(j.Blocks), len(j.Places), maxBlocks, maxPlaces))
	}
	l, err := m.child(ctx)
	if err != nil {
		return nil, m.fail("sum", "", err)
	}
	a, err := l.answer(ctx, frame{kind: kindSum, body: appendSum(nil, j)}, nil)
	if err != nil {
		return nil, m.fail("sum", "", err)
	}
	return a.sums, nil
}

var _ transfer.Summer = (*Mover)(nil)

// sum adds up beside what else the mover does.
func (s *server) sum(f *frame) error {
	r := reader{b: f.body}
	j := r.sum()
	if err := r.end(); err != nil {
		return err
	}
	if s.adding.Add(1) > maxAdding {
		s.adding.Add(-1)
		return s.answer(f.id, 0, fmt.Errorf("%w: %d sums: wait for one of them", transfer.ErrFull, maxAdding))
	}
	id := f.id
	s.helpers.Go(func() {
		defer s.adding.Add(-1)
		made, err := s.b.Sum(context.Background(), j)
		_ = s.write(&frame{kind: kindAnswer, id: id, body: answer{err: err, sums: made}.append(nil)})
	})
	return nil
}

func appendSum(b []byte, j *sums.Job) []byte {
	for _, v := range [...]int32{j.Range, j.Slot, int32(len(j.Blocks)), int32(len(j.Places))} {
		b = le.AppendUint32(b, uint32(v))
	}
	for _, v := range j.Blocks {
		b = le.AppendUint32(b, uint32(v))
	}
	for i := range j.Places {
		p := &j.Places[i]
		for _, v := range [...]int32{p.State, p.Box.Layers.Lo, p.Box.Layers.Hi, p.Box.Units.Lo, p.Box.Units.Hi, p.Tokens.Lo, p.Tokens.Hi,
			p.Rows, p.Elems, p.Size, p.Items, p.Depth, int32(p.View.Buffer)} {
			b = le.AppendUint32(b, uint32(v))
		}
		for _, v := range [...]int64{p.View.Off, p.View.Layer, p.View.Item, p.View.Row, p.View.Unit, p.View.Elem} {
			b = le.AppendUint64(b, uint64(v))
		}
	}
	return b
}

// placeBytes is one place on the socket.
const placeBytes = 13*4 + 6*8

func (r *reader) sum() *sums.Job {
	j := &sums.Job{Range: int32(r.u32()), Slot: int32(r.u32())}
	blocks, places := r.u32(), r.u32()
	if blocks > maxBlocks || int64(places)*placeBytes > int64(len(r.b)) {
		r.err = fmt.Errorf("%w: %d blocks and %d places", errWire, blocks, places)
		return j
	}
	j.Blocks = r.table(nil, blocks)
	j.Places = make([]sums.Place, places)
	for i := range j.Places {
		p := &j.Places[i]
		for _, v := range [...]*int32{&p.State, &p.Box.Layers.Lo, &p.Box.Layers.Hi, &p.Box.Units.Lo, &p.Box.Units.Hi, &p.Tokens.Lo, &p.Tokens.Hi,
			&p.Rows, &p.Elems, &p.Size, &p.Items, &p.Depth} {
			*v = int32(r.u32())
		}
		p.View.Buffer = r.u32()
		for _, v := range [...]*int64{&p.View.Off, &p.View.Layer, &p.View.Item, &p.View.Row, &p.View.Unit, &p.View.Elem} {
			*v = int64(r.u64())
		}
	}
	return j
}
