package loop

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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

// TestSumsOutliveMovers: a sum reads alone, so it is asked of the next mover, a few times, with
// longer and longer pauses; a sidecar that stops waits for none.
func TestSumsOutliveMovers(t *testing.T) {
	synctest.Test(t, sumsOutliveMovers)
}

func sumsOutliveMovers(t *testing.T) {
	bad := errors.New("no such block")
	for _, c := range []struct {
		d     dying
		asked int
		took  time.Duration
		want  error
	}{{dying{}, 1, 0, nil}, {dying{deaths: 2}, 3, 3 * retry, nil}, {dying{deaths: 9}, sumTries, 3 * retry, transfer.ErrMover}, {dying{err: bad}, 1, 0, bad}} {
		d, began := c.d, time.Now()
		made, err := sum(t.Context(), &d, machine.Sum{})
		if !errors.Is(err, c.want) || d.asked != c.asked || err == nil && len(made) != 1 || time.Since(began) != c.took {
			t.Errorf("%+v: asked %d times in %v, %v, %v", c.d, d.asked, time.Since(began), made, err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := sum(ctx, &dying{deaths: 9}, machine.Sum{}); !errors.Is(err, transfer.ErrMover) {
		t.Error(err)
	}
}
