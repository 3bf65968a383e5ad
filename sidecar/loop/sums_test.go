package loop

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/sums"
)

// dying is a mover that dies under the first sums.
type dying struct {
	deaths, asked int
	err           error
}

func (d *dying) Sum(context.Context, *sums.Job) ([]uint64, error) {
	if d.asked++; d.asked <= d.deaths {
		return nil, fmt.Errorf("%w: pid 7", transfer.ErrMover)
	}
	return []uint64{9}, d.err
}

// TestSumsOutliveMovers: a sum reads alone, so it is asked of the next mover, a few times.
func TestSumsOutliveMovers(t *testing.T) {
	bad := errors.New("no such block")
	for _, c := range []struct {
		d     dying
		asked int
		want  error
	}{{dying{}, 1, nil}, {dying{deaths: 2}, 3, nil}, {dying{deaths: 9}, sumTries, transfer.ErrMover}, {dying{err: bad}, 1, bad}} {
		d := c.d
		made, err := sum(t.Context(), &d, machine.Sum{})
		if !errors.Is(err, c.want) || d.asked != c.asked || err == nil && len(made) != 1 {
			t.Errorf("%+v: asked %d times, %v, %v", c.d, d.asked, made, err)
		}
	}
}
