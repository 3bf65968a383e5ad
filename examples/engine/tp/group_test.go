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
	if err := tp.Single().Sum([]int{0}, part, units, want); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{2, 4, 8} {
		for name, groups := range map[string][]*tp.Group{"pipes": tp.Pipes(size), "sockets": meet(t, size)} {
			t.Run(fmt.Sprintf("%s/%d", name, size), func(t *testing.T) {
				err := lockstep(groups, func(g *tp.Group) error {
					own := units / size
					out := make([]float32, n)
					for range 3 {
						if err := g.Sum(upTo(size), part[g.Rank()*own*n:(g.Rank()+1)*own*n], own, out); err != nil {
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

func upTo(n int) (ranks []int) {
	for r := range n {
		ranks = append(ranks, r)
	}
	return ranks
}

// TestSumOfSome: two teams add at once, and a rank without units has the sum too.
func TestSumOfSome(t *testing.T) {
	for name, groups := range map[string][]*tp.Group{"pipes": tp.Pipes(6), "sockets": meet(t, 6)} {
		err := lockstep(groups, func(g *tp.Group) error {
			team, part := []int{0, 2, 4}, []float32{float32(g.Rank()), 1}
			if g.Rank()%2 == 1 {
				team = []int{1, 3, 5}
			}
			if g.Rank() > 3 {
				part = nil
			}
			out := make([]float32, 2)
			err := g.Sum(team, part, len(part)/2, out)
			if want := []float32{2 + 2*float32(g.Rank()%2), 2}; err == nil && !slices.Equal(out, want) {
				err = fmt.Errorf("rank %d: %v, want %v", g.Rank(), out, want)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExchange: every rank of a team has what every other sent it, of any length, also
// larger than a socket's buffers; ranks with nothing to send take part.
func TestExchange(t *testing.T) {
	const size = 5
	team := []int{0, 1, 3, 4}
	value := func(from, to, i int) float32 { return float32(from*1_000_000 + to*100_000 + i%1000) }
	count := func(from, to, round int) int {
		if from == 3 {
			return 0
		}
		return (from + 2*to + round) % 3 * 50_000
	}
	for name, groups := range map[string][]*tp.Group{"pipes": tp.Pipes(size), "sockets": meet(t, size)} {
		err := lockstep(groups, func(g *tp.Group) error {
			if !slices.Contains(team, g.Rank()) {
				return nil
			}
			for round := range 3 {
				var out [][]float32
				for _, to := range team {
					v := make([]float32, count(g.Rank(), to, round))
					for i := range v {
						v[i] = value(g.Rank(), to, i)
					}
					out = append(out, v)
				}
				heard := 0
				err := g.Exchange(team, out, func(i int, v []float32) error {
					heard++
					if len(v) != count(team[i], g.Rank(), round) {
						return fmt.Errorf("rank %d: %d values of rank %d", g.Rank(), len(v), team[i])
					}
					for k, x := range v {
						if x != value(team[i], g.Rank(), k) {
							return fmt.Errorf("rank %d: value %d of rank %d is %v", g.Rank(), k, team[i], x)
						}
					}
					return nil
				})
				if err != nil || heard != len(team) {
					return fmt.Errorf("rank %d heard %d: %w", g.Rank(), heard, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPass(t *testing.T) {
	err := lockstep(meet(t, 3), func(g *tp.Group) error {
		v := []float32{1, 2, 3}
		if g.Rank() > 0 {
			if err := g.Take(g.Rank()-1, v); err != nil {
				return err
			}
			for i := range v {
				v[i] *= 2
			}
		}
		if g.Rank() < 2 {
			return g.Pass(g.Rank()+1, v)
		}
		if !slices.Equal(v, []float32{4, 8, 12}) {
			return fmt.Errorf("%v", v)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = lockstep(tp.Pipes(2), func(g *tp.Group) error {
		if g.Rank() == 0 {
			return g.Pass(1, make([]float32, 3))
		}
		if err := g.Take(0, make([]float32, 4)); !errors.Is(err, tp.ErrFrame) {
			return fmt.Errorf("3 values for 4: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
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
