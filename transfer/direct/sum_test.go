package direct

import (
	"context"
	"errors"
	"testing"

	"github.com/batonkv/baton/kernels/rows"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/sums"
	"github.com/batonkv/baton/transfer/transfertest"
)

// slowAdder is a Copier whose sums wait for let.
type slowAdder struct {
	*rows.Copier
	begun, let chan struct{}
}

func (a *slowAdder) Sum(ctx context.Context, j *sums.Job, in transfer.Buffers) ([]uint64, error) {
	a.begun <- struct{}{}
	<-a.let
	return a.Copier.Sum(ctx, j, in)
}

// TestSumKeepsItsRegion: what is added up stays mapped until that has ended, and Close waits.
func TestSumKeepsItsRegion(t *testing.T) {
	c, err := rows.New(rows.Config{})
	if err != nil {
		t.Fatal(err)
	}
	a := &slowAdder{c, make(chan struct{}), make(chan struct{})}
	b, err := New(Config{Copier: a})
	if err != nil {
		t.Fatal(err)
	}
	region, err := b.Register(t.Context(), 1, transfertest.Memfd(t, 8192).Memory())
	if err != nil {
		t.Fatal(err)
	}
	j := &sums.Job{Range: 16, Slot: 1, Places: []sums.Place{{Box: layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: 2}}, Rows: 1,
		Elems: 16, Size: 4, Items: 2, Depth: 1, View: layout.View{Buffer: 1, Layer: 256, Item: 128, Row: 128, Unit: 64, Elem: 4}}}}
	ended := make(chan error, 1)
	go func() {
		made, err := b.Sum(t.Context(), j)
		if err == nil && len(made) != 2 {
			err = errors.New("want two sums")
		}
		ended <- err
	}()
	<-a.begun
	if err := region.Close(); !errors.Is(err, transfer.ErrBusy) {
		t.Errorf("region close under a sum: %v, want ErrBusy", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Close(over); !errors.Is(err, transfer.ErrBusy) {
		t.Errorf("close under a sum: %v, want ErrBusy", err)
	}
	close(a.let)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := b.Sum(t.Context(), j); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestSumNeedsACopierThatAdds: and memory that is registered.
func TestSumNeedsACopierThatAdds(t *testing.T) {
	c, _ := rows.New(rows.Config{})
	for _, x := range []struct {
		copier transfer.Copier
		want   error
	}{{&gate{Copier: c}, transfer.ErrMemory}, {c, transfer.ErrBounds}} {
		b, err := New(Config{Copier: x.copier})
		if err != nil {
			t.Fatal(err)
		}
		j := &sums.Job{Places: []sums.Place{{Box: layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: 1}}, Rows: 1, Elems: 1, Size: 1, Items: 1, Depth: 1}}}
		if _, err := b.Sum(t.Context(), j); !errors.Is(err, x.want) {
			t.Errorf("%v, want %v", err, x.want)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
