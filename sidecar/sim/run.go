package sim

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/bits"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options say which schedules to run. The zero value runs one, seed 0.
type Options struct {
	Seed      uint64        // of the first schedule; they count up from it
	Schedules uint64        // how many at most; 0: until Limit or ctx ends
	Limit     time.Duration // no schedule begins after it; 0: no limit
	Workers   int           // 0: as many as there are processors
	Keep      int           // failures to keep; 0: stop at the first
	// Progress is called about once in Every, from one goroutine.
	Progress func(Report)
	Every    time.Duration
}

// Failure is a schedule that broke an invariant.
type Failure struct {
	Seed uint64
	What string
}

// Report is what schedules found.
type Report struct {
	Schedules uint64
	Admitted  uint64 // hand-offs that got through
	Moments   uint64 // things that happened
	Distinct  uint64 // about: cluster states that differ, of every fourth schedule
	Histories uint64 // about: schedules whose answers differ
	Elapsed   time.Duration
	Coverage  Coverage
	Failures  []Failure
}

// Replay runs one schedule, writes what happens to trace, and returns the invariant that
// it breaks, or "".
func Replay(seed uint64, trace io.Writer) string {
	w := newWorld(seed, new(Coverage))
	w.print = trace
	w.schedule()
	return w.bad
}

// runner is one Run.
type runner struct {
	o     Options
	began time.Time
	next  atomic.Uint64
	stop  context.CancelFunc

	mu    sync.Mutex // guards:
	sum   Report
	marks sketches
}

// Run plays schedules on several processors until they are done, ctx ends, or more than
// Keep fail. Which schedules there are does not depend on how many processors do it.
func Run(ctx context.Context, o Options) Report {
	// Worlds are small and short-lived: with so little alive, the collector runs all the time.
	defer debug.SetGCPercent(debug.SetGCPercent(2000))
	r := &runner{o: o, began: time.Now()}
	ctx, r.stop = context.WithCancel(ctx)
	defer r.stop()
	workers := o.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { r.work(ctx) })
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	if o.Progress == nil {
		<-done
		return r.report()
	}
	t := time.NewTicker(max(o.Every, time.Second))
	defer t.Stop()
	for {
		select {
		case <-done:
			return r.report()
		case <-t.C:
			o.Progress(r.report())
		}
	}
}

// work plays one schedule after the other.
func (r *runner) work(ctx context.Context) {
	var part Report
	var seen sketches
	defer func() { r.flush(&part, &seen) }()
	for ctx.Err() == nil && (r.o.Limit == 0 || time.Since(r.began) < r.o.Limit) {
		i := r.next.Add(1) - 1
		if r.o.Schedules > 0 && i >= r.o.Schedules {
			return
		}
		part.play(r.o.Seed+i, &seen)
		if i%256 == 0 || len(part.Failures) > 0 {
			r.flush(&part, &seen)
		}
	}
}

// sampled: looking at the states of every schedule would cost a tenth of them.
const sampled = 4

// flush brings what a worker found to the sum.
func (r *runner) flush(part *Report, seen *sketches) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.add(part)
	r.marks.add(seen)
	*part = Report{}
	if len(r.sum.Failures) > r.o.Keep {
		r.stop()
	}
}

func (r *runner) report() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := r.sum
	sum.Failures = slices.Clone(sum.Failures)
	sum.Elapsed, sum.Distinct, sum.Histories = time.Since(r.began), r.marks.states.count(), r.marks.ends.count()
	return sum
}

// play adds one schedule.
func (r *Report) play(seed uint64, seen *sketches) {
	w := newWorld(seed, &r.Coverage)
	if seed%sampled == 0 {
		w.seen = &seen.states
	}
	w.schedule()
	seen.ends.mark(w.history)
	r.Schedules++
	r.Admitted += uint64(w.ok)
	r.Moments += uint64(w.seq)
	if w.bad != "" {
		r.Failures = append(r.Failures, Failure{seed, w.bad})
	}
}

func (r *Report) add(o *Report) {
	r.Schedules += o.Schedules
	r.Admitted += o.Admitted
	r.Moments += o.Moments
	r.Failures = append(r.Failures, o.Failures...)
	r.Coverage.add(&o.Coverage)
}

// String is the summary in one line.
func (r Report) String() string {
	return fmt.Sprintf("%d schedules in %.1fs (%.0f/s), %d hand-offs admitted, %d moments, about %d distinct schedules and, in every fourth, %d distinct states, %d failures",
		r.Schedules, r.Elapsed.Seconds(), float64(r.Schedules)/max(r.Elapsed.Seconds(), 1e-9), r.Admitted, r.Moments, r.Histories, r.Distinct, len(r.Failures))
}

// sketch counts distinct hashes in little memory, to about 1 percent: HyperLogLog.
type sketch [1 << 14]uint8

type sketches struct{ states, ends sketch }

func (s *sketches) add(o *sketches) {
	s.states.add(&o.states)
	s.ends.add(&o.ends)
}

func (s *sketch) mark(h uint64) {
	h = mix(h)
	r := &s[h&(1<<14-1)]
	*r = max(*r, uint8(bits.TrailingZeros64(h>>14|1<<50))+1)
}

func (s *sketch) add(o *sketch) {
	for i, v := range o {
		s[i] = max(s[i], v)
	}
}

func (s *sketch) count() uint64 {
	sum, zero := 0.0, 0
	for _, v := range s {
		sum += math.Exp2(-float64(v))
		if v == 0 {
			zero++
		}
	}
	m := float64(len(s))
	n := 0.7213 / (1 + 1.079/m) * m * m / sum
	if n < 2.5*m && zero > 0 { // few: count what is empty
		n = m * math.Log(m/float64(zero))
	}
	return uint64(math.Round(n))
}

// mix spreads the bits of h: the end of splitmix64.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
