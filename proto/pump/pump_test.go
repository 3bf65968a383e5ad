package pump

import (
	"errors"
	"slices"
	"testing"
)

var errCause = errors.New("cause")

// run starts Run with a write that records, and that waits for gate if there is one.
func run(p *Pump[int], gate <-chan struct{}) (got *[]int, end <-chan error) {
	got, done := new([]int), make(chan error, 1)
	go func() {
		done <- p.Run(func(n int) error {
			if gate != nil {
				<-gate
			}
			*got = append(*got, n)
			return nil
		})
	}()
	return got, done
}

func TestCloseFlushesInOrder(t *testing.T) {
	p := New[int](8)
	for n := range 5 {
		if err := p.Send(n); err != nil {
			t.Fatal(err)
		}
	}
	p.Close(errCause)
	got, end := run(p, nil)
	if err := <-end; err != errCause || !slices.Equal(*got, []int{0, 1, 2, 3, 4}) {
		t.Fatalf("got %v, %v", *got, err)
	}
	if err := p.Send(9); !errors.Is(err, ErrClosed) || !errors.Is(err, errCause) {
		t.Fatalf("send after the end: %v", err)
	}
}

func TestOverflowEndsAndDrops(t *testing.T) {
	p := New[int](2)
	gate := make(chan struct{})
	got, end := run(p, gate)
	var err error
	for n := 0; err == nil; n++ {
		if n > 4 {
			t.Fatal("never full")
		}
		err = p.Send(n)
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("got %v", err)
	}
	<-p.Ended()
	close(gate)
	if err := <-end; !errors.Is(err, ErrFull) || len(*got) > 3 {
		t.Fatalf("got %v, %v", *got, err)
	}
	if p.Close(errCause); errors.Is(p.Cause(), errCause) {
		t.Fatal("a later close replaced the cause")
	}
}

func TestBreakDropsAndWriteErrorEnds(t *testing.T) {
	p := New[int](4)
	_ = p.Send(1)
	p.Break(nil)
	got, end := run(p, nil)
	if err := <-end; err != nil || len(*got) != 0 {
		t.Fatalf("got %v, %v", *got, err)
	}
	q := New[int](4)
	_ = q.Send(1)
	if err := q.Run(func(int) error { return errCause }); err != errCause {
		t.Fatalf("got %v", err)
	}
}

// TestBreakReachesAWriterThatHangs: the write returns only once its stream was cut.
func TestBreakReachesAWriterThatHangs(t *testing.T) {
	p := New[int](1)
	writing, cut := make(chan struct{}), make(chan struct{})
	go func() {
		_ = p.Run(func(int) error {
			close(writing)
			<-cut
			return errors.New("stream cut")
		})
	}()
	if err := p.Send(1); err != nil {
		t.Fatal(err)
	}
	<-writing
	p.Close(nil) // flushes, and hangs
	p.Break(errCause)
	<-p.Broken()
	if err := p.Wait(); err != nil {
		t.Fatalf("the first close was ordinary, got %v", err)
	}
	close(cut)
}
