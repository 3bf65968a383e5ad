package tp_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/batonkv/baton/examples/engine/tp"
)

// lockstep runs one function per rank and waits for all.
func lockstep(groups []*tp.Group, do func(g *tp.Group) error) error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() { errs[i] = do(g) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func meet(t *testing.T, size int) []*tp.Group {
	dir := t.TempDir()
	groups := make([]*tp.Group, size)
	errs := make([]error, size)
	var wg sync.WaitGroup
	for r := range size {
		wg.Go(func() {
			groups[r], errs[r] = tp.Meet(t.Context(), tp.Join{Dir: dir, Rank: r, Size: size, Identity: "x"})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		t.Cleanup(func() { _ = g.Close() })
	}
	return groups
}

func TestSumIsOneOrder(t *testing.T) {
	const units, n = 8, 37
	rng := rand.New(rand.NewPCG(1, 2))
	part := make([]float32, units*n)
	for i := range part {
		part[i] = float32(rng.NormFloat64() * float64(int(1)<<rng.IntN(20)))
	}
	want := make([]float32, n)
	if err := tp.Single().Sum(part, units, want); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{2, 4, 8} {
		for name, groups := range map[string][]*tp.Group{"pipes": tp.Pipes(size), "sockets": meet(t, size)} {
			t.Run(fmt.Sprintf("%s/%d", name, size), func(t *testing.T) {
				err := lockstep(groups, func(g *tp.Group) error {
					own := units / size
					out := make([]float32, n)
					for range 3 {
						if err := g.Sum(part[g.Rank()*own*n:(g.Rank()+1)*own*n], own, out); err != nil {
							return err
						}
						if !slices.Equal(out, want) {
							return fmt.Errorf("rank %d: sums differ", g.Rank())
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

func TestStep(t *testing.T) {
	err := lockstep(meet(t, 3), func(g *tp.Group) error {
		if g.Rank() > 0 {
			b, err := g.Receive()
			if err != nil || string(b) != "go" {
				return fmt.Errorf("%q %v", b, err)
			}
			return g.Report([]byte{byte(g.Rank())})
		}
		if err := g.Broadcast([]byte("go")); err != nil {
			return err
		}
		var sum byte
		err := g.Gather(func(rank int, b []byte) error { sum += b[0] * byte(rank); return nil })
		if sum != 5 {
			return fmt.Errorf("reports add to %d", sum)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestLostRank(t *testing.T) {
	err := lockstep(meet(t, 2), func(g *tp.Group) error {
		if g.Rank() == 1 {
			return g.Close()
		}
		return g.Gather(func(int, []byte) error { return nil })
	})
	if !errors.Is(err, tp.ErrLost) {
		t.Fatal(err)
	}
}

func TestMeetRefuses(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := tp.Meet(ctx, tp.Join{Dir: dir, Size: 2, Identity: "a"})
		done <- err
	}()
	for _, j := range []tp.Join{{Dir: dir, Rank: 1, Size: 2, Identity: "b"}, {Dir: dir, Rank: 2, Size: 3, Identity: "a"}} {
		if _, err := tp.Meet(ctx, j); !errors.Is(err, tp.ErrJoin) || !strings.Contains(err.Error(), "rank") {
			t.Errorf("%+v: %v", j, err)
		}
	}
	if _, err := tp.Listen(ctx, dir+"/"+tp.Socket); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Error(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, tp.ErrJoin) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for _, j := range []tp.Join{{Size: 0}, {Rank: 2, Size: 2, Dir: dir}, {Rank: 0, Size: 2}} {
		if _, err := tp.Meet(t.Context(), j); !errors.Is(err, tp.ErrJoin) {
			t.Errorf("%+v: %v", j, err)
		}
	}
}
