package session

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

var info = adapter.Info{Name: "x", Version: "1", Wants: []control.Kind{control.Exported, control.Over}}

// rig plays the driver, the adapter and the sidecar for one machine, and holds what the
// machine does against what happened.
type rig struct {
	t interface {
		Fatalf(string, ...any)
		Helper()
	}
	m       *Machine
	now     Now
	world   adapter.State // of the sidecar
	at      adapter.State // when it was looked at
	seq     uint64
	life    Life // that is open; 0: none
	open    Effect
	calls   []adapter.Verb // of this life
	shown   adapter.State  // what the adapter made of its calls
	collect bool
	pending []uint64 // wanted notices that it was not told
	lost    uint64   // by the sidecar's own log
	wholes  int
	most    int // notices that waited
}

func newRig(t interface {
	Fatalf(string, ...any)
	Helper()
}, cfg Config) *rig {
	r := &rig{t: t, m: New(cfg)}
	r.step(Tick{})
	return r
}

func (r *rig) step(e Event) {
	r.t.Helper()
	effects := r.m.Step(r.now, e)
	if r.most = max(r.most, len(r.m.notices)); r.most > adapter.MaxNotices {
		r.t.Fatalf("%d notices wait", r.most)
	}
	for _, f := range effects {
		switch f := f.(type) {
		case Tell:
			continue
		case Open:
			if r.life != 0 {
				r.t.Fatalf("life %d opens while %d is open", f.Life, r.life)
			}
			r.life, r.calls, r.shown = f.Life, nil, adapter.State{}
		case Close:
			if f.Life != r.life {
				r.t.Fatalf("close of life %d, open is %d", f.Life, r.life)
			}
			r.open, r.collect, r.pending, r.lost = nil, false, nil, 0
		case Look:
			r.collect = true
		case Call:
			r.called(f)
		}
		if look, ok := r.open.(Look); ok && r.m.stop { // nobody waits for the state any more
			r.open = nil
			defer r.step(Looked{look.Life, r.world, nil})
		}
		if r.open != nil {
			r.t.Fatalf("%T while %T is open", f, r.open)
		}
		r.open = f
	}
}

// called holds a call against the order and against what happened.
func (r *rig) called(c Call) {
	r.t.Helper()
	r.calls = append(r.calls, c.Verb)
	for i, v := range r.calls {
		want := min(adapter.Verb(i+1), adapter.Notify)
		if v != want && (v != adapter.Drain || i < 3 || i != len(r.calls)-1) {
			r.t.Fatalf("calls %v", r.calls)
		}
	}
	switch c.Verb {
	case adapter.Sync:
		r.shown = c.State
	case adapter.Notify:
		var got []uint64
		for _, n := range c.Update.Notices {
			got = append(got, n.Seq)
		}
		switch u := c.Update; {
		case u.Whole == nil && (!slices.Equal(got, r.pending) || r.lost != 0 || len(got) > adapter.MaxNotices):
			r.t.Fatalf("told %v, want %v; %d were lost", got, r.pending, r.lost)
		case u.Whole != nil && (u.Lost != r.lost+uint64(len(r.pending)) || len(got) > 0 || r.lost == 0 && len(r.pending) <= adapter.MaxNotices):
			r.t.Fatalf("told the whole and %v, %d lost, want %d and %d", got, u.Lost, len(r.pending), r.lost)
		case u.Whole != nil:
			r.wholes++
		}
		r.pending, r.lost = nil, 0
		r.shown = r.shown.Apply(c.Update)
	default:
		return
	}
	if !reflect.DeepEqual(r.shown, r.at) {
		r.t.Fatalf("the adapter has %+v, the sidecar %+v", r.shown, r.at)
	}
}

// answer answers what is open.
func (r *rig) answer(err error) {
	r.t.Helper()
	f := r.open
	r.open = nil
	switch f := f.(type) {
	case Open:
		r.step(Opened{f.Life, err})
	case Call:
		a := Answered{Life: f.Life, Err: err}
		if f.Verb == adapter.Register {
			a.Info = info
		}
		r.step(a)
	case Look:
		r.at = r.world
		r.step(Looked{f.Life, r.world, err})
	case Close:
		r.life = 0
		r.step(Closed{f.Life})
	}
}

// happen lets something happen to a hand-off, and tells of it.
func (r *rig) happen(n uint64, p control.Phase) {
	r.t.Helper()
	id := handoff.ID{Group: "g", N: n}
	i, there := slices.BinarySearchFunc(r.world.Handoffs, id, func(i control.Info, id handoff.ID) int { return adapter.Compare(i.ID, id) })
	next, k := slices.Clone(r.world.Handoffs), control.Exported
	switch {
	case p == control.Ended && there:
		next, k = slices.Delete(next, i, i+1), control.Over
	case p == control.Ended:
		return
	case there:
		next[i].Phase, k = p, control.Imported // not wanted
	default:
		next = slices.Insert(next, i, control.Info{ID: id, Phase: p})
	}
	if r.world.Handoffs = next; len(next) == 0 {
		r.world.Handoffs = nil
	}
	r.seq++
	if r.collect && slices.Contains(info.Wants, k) {
		r.pending = append(r.pending, r.seq)
	}
	r.step(Noticed{control.Notice{Seq: r.seq, Kind: k, ID: id}})
}

// pass lets time pass until the machine wants it.
func (r *rig) pass() {
	r.t.Helper()
	if at, ok := r.m.Next(); ok {
		r.now = max(r.now, at)
	}
	r.step(Tick{})
}

// serve answers everything until the machine rests.
func (r *rig) serve() {
	r.t.Helper()
	for range 8 {
		if r.open != nil {
			r.answer(nil)
		}
	}
	if s := r.m.Status().Stage; s != Serving {
		r.t.Fatalf("%v", s)
	}
}

func (r *rig) want(s Stage) {
	r.t.Helper()
	if got := r.m.Status(); got.Stage != s {
		r.t.Fatalf("is %v (%v), want %v", got.Stage, got.Err, s)
	}
}

// TestAnySchedule lets calls fail, hang and end in any order, while things happen: the
// adapter is told of each, once, in order, or that it was not, and stopping ends it.
func TestAnySchedule(t *testing.T) {
	var wholes, notes int
	rapid.Check(t, func(t *rapid.T) {
		cfg := Default()
		cfg.Mint = func() uint64 { return rapid.Uint64().Draw(t, "mint") }
		r := newRig(t, cfg)
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "what") {
			case 0, 1, 2, 3:
				r.answer(nil)
			case 4, 5, 6:
				r.happen(rapid.Uint64Range(1, 5).Draw(t, "n"), control.Phase(rapid.IntRange(1, 3).Draw(t, "phase")))
			case 7:
				r.now += time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "d"))
				r.step(Tick{})
			case 8:
				r.pass()
			case 9:
				r.answer(errors.New("no"))
			case 10:
				r.step(Ended{Life(rapid.IntRange(0, int(r.m.life)).Draw(t, "of")), errors.New("killed")})
			case 11:
				for i := range uint64(rapid.SampledFrom([]int{1, 100, adapter.MaxNotices}).Draw(t, "burst")) {
					r.happen(10+i, control.Held)
					r.happen(10+i, control.Ended)
				}
				if rapid.IntRange(0, 4).Draw(t, "log") == 0 && r.collect {
					r.lost++
					r.step(Noticed{control.Notice{Kind: control.Gap, Lost: 1}})
				}
			}
		}
		wholes, notes = wholes+r.wholes, max(notes, r.most)
		r.step(Stop{})
		for range 6 {
			r.answer(nil)
		}
		r.want(Stopped)
		if r.life != 0 || r.open != nil {
			t.Fatalf("stopped with %T open", r.open)
		}
	})
	if wholes == 0 || notes < adapter.MaxNotices {
		t.Errorf("%d whole states, %d notices at most: the schedules reach too little", wholes, notes)
	}
}

func TestOneLife(t *testing.T) {
	r := newRig(t, Default())
	r.serve()
	r.happen(1, control.Held)
	r.pass()
	r.serve()
	r.step(Stop{})
	r.answer(nil)
	if c, ok := r.open.(Close); !ok || c.Hard {
		t.Fatalf("%+v after a drain", r.open)
	}
	r.answer(nil)
	r.want(Stopped)
	if want := []adapter.Verb{adapter.Register, adapter.Configure, adapter.Sync, adapter.Notify, adapter.Drain}; !slices.Equal(r.calls, want) {
		t.Errorf("calls %v", r.calls)
	}
}

func TestPaceAndBeat(t *testing.T) {
	cfg := Default()
	r := newRig(t, cfg)
	r.serve()
	r.now += cfg.Pace
	began := r.now
	r.happen(1, control.Held)
	if _, ok := r.open.(Look); !ok {
		t.Fatalf("%T: the first notice waits", r.open)
	}
	r.answer(nil)
	r.happen(2, control.Held) // while Notify runs
	r.answer(nil)
	r.want(Serving)
	if at, _ := r.m.Next(); at != began+cfg.Pace {
		t.Errorf("next look at %v, want %v", at, began+cfg.Pace)
	}
	for calls := len(r.calls); len(r.calls) == calls+1 || r.now < began+3*cfg.Beat; {
		if len(r.calls) > calls && r.now-began > cfg.Beat {
			break
		}
		r.pass()
		r.serve()
	}
	if n := len(r.calls); n != 6 { // register, configure, sync, both notices, a beat
		t.Errorf("%v", r.calls)
	}
}

func TestPauseDoublesAndBeginsAnew(t *testing.T) {
	cfg := Default()
	r := newRig(t, cfg)
	for i, want := range []time.Duration{200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000} {
		r.answer(fmt.Errorf("try %d", i))
		r.answer(nil) // closed
		r.want(Waiting)
		if at, _ := r.m.Next(); at-r.now != want*time.Millisecond/2 {
			t.Errorf("pause %d is %v, want %v", i, at-r.now, want*time.Millisecond/2)
		}
		r.pass()
	}
	r.serve()
	if err := r.m.Status().Err; err != nil {
		t.Errorf("serves, and still says %v", err)
	}
	r.now += cfg.Most
	r.step(Ended{r.life, errors.New("killed")})
	r.answer(nil)
	if at, _ := r.m.Next(); at-r.now != cfg.Least/2 {
		t.Errorf("after a long life the pause is %v", at-r.now)
	}
	if got := r.m.Status(); got.Restarts != 11 || !errors.Is(got.Err, handoff.ErrHost) {
		t.Errorf("%+v", got)
	}
}

func TestDeadlineEndsALife(t *testing.T) {
	for i, s := range []Stage{Opening, Registering, Configuring, Syncing} { // Syncing after its look
		r := newRig(t, Default())
		for range i {
			r.answer(nil)
		}
		if s == Syncing {
			r.answer(nil)
		}
		r.want(s)
		r.pass()
		r.want(Ending)
		if c := r.open.(Close); !c.Hard || !errors.Is(r.m.Status().Err, handoff.ErrDeadline) {
			t.Errorf("%v: %+v, %v", s, c, r.m.Status().Err)
		}
	}
}

func TestRefusedIsFinal(t *testing.T) {
	r := newRig(t, Default())
	r.answer(nil)
	r.answer(nil)
	r.answer(fmt.Errorf("%w: path: is empty", handoff.ErrSection))
	r.answer(nil)
	r.want(Refused)
	if at, ok := r.m.Next(); ok {
		t.Errorf("goes on at %v", at)
	}
	r.step(Ended{r.m.life, errors.New("exit")})
	r.want(Refused)
	r.step(Stop{})
	r.want(Stopped)
}

func TestALookThatFailsIsRepeated(t *testing.T) {
	r := newRig(t, Default())
	for range 3 {
		r.answer(nil)
	}
	r.answer(errors.New("busy"))
	r.want(Syncing)
	r.pass()
	r.serve()
	if got := r.m.Status(); got.Restarts != 0 {
		t.Errorf("%+v", got)
	}
}

func TestHeavyNoticesAreLostSooner(t *testing.T) {
	r := newRig(t, Default())
	for range 4 {
		r.answer(nil)
	}
	heavy := control.Notice{Kind: control.Exported, Manifest: &handoff.Manifest{Resume: handoff.Resume{Sampler: make([]byte, adapter.MaxBytes/4)}}}
	for i := range 5 {
		r.step(Noticed{heavy})
		if lost, n := r.m.lost, len(r.m.notices); i < 3 && (lost != 0 || n != i+1) || i >= 3 && (lost != uint64(i+1) || n != 0) {
			t.Errorf("after %d: %d wait, %d lost", i+1, n, lost)
		}
	}
}
