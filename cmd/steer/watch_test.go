package steer

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
)

// world is a cluster that a test plays. Each stream ends with an error that is sent to it.
type world struct {
	plugins.Cluster
	plugins.Handoff
	views chan any
	mu    sync.Mutex // guards:
	said  map[string]chan any
	from  []control.Cursor // that were asked for
}

func newWorld() *world { return &world{views: make(chan any), said: map[string]chan any{}} }

func (w *world) of(group string) chan any {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.said[group] == nil {
		w.said[group] = make(chan any)
	}
	return w.said[group]
}

func stream[T any](ctx context.Context, ch chan any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		for {
			select {
			case v := <-ch:
				if err, bad := v.(error); bad {
					yield(none, err)
					return
				}
				if !yield(v.(T), nil) {
					return
				}
			case <-ctx.Done():
				yield(none, ctx.Err())
				return
			}
		}
	}
}

// say sends and waits until it was taken in: streams side by side have no order. Where a stream
// ended with an error, the bubble's clock goes on to the next attempt.
func (w *world) say(ch chan any, v any) {
	ch <- v
	synctest.Wait()
}

type viewsOf struct{ *world }

func (v viewsOf) Watch(ctx context.Context) iter.Seq2[[]plugins.Group, error] {
	return stream[[]plugins.Group](ctx, v.views)
}

type noticesOf struct{ *world }

func (n noticesOf) Watch(ctx context.Context, group string, from control.Cursor) iter.Seq2[control.Notice, error] {
	n.mu.Lock()
	n.from = append(n.from, from)
	n.mu.Unlock()
	return stream[control.Notice](ctx, n.of(group))
}

func group(name string, ranks ...plugins.Rank) plugins.Group {
	return plugins.Group{Cluster: "c", Pool: "p", Name: name, Role: discovery.Decode, Instance: 1, Size: int32(len(ranks)), Ranks: ranks, Complete: true, CapacityBlocks: 256}
}

func rank(n int, inc handoff.Incarnation) plugins.Rank {
	return plugins.Rank{Member: handoff.Member{Rank: 0, Incarnation: inc}, PID: int32(n), Addr: "h:1"}
}

// watched runs Watch and returns what it wrote after play has sent all and things are quiet.
func watched(t *testing.T, o WatchOptions, play func(w *world)) (string, error) {
	t.Helper()
	var out strings.Builder
	var err error
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			err = Watch(ctx, viewsOf{w}, noticesOf{w}, o, &out)
		}()
		play(w)
		synctest.Wait()
		cancel()
		<-ended
	})
	return out.String(), err
}

var clock = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\.\d{3}  `)

func plainly(s string) string { return clock.ReplaceAllString(s, "") }

func TestWatch(t *testing.T) {
	src := handoff.ID{Group: "prefill-0", Leader: 7, N: 3}
	got, err := watched(t, WatchOptions{}, func(w *world) {
		w.say(w.views, []plugins.Group{group("decode-0", rank(11, 1)), group("prefill-0", rank(12, 1))})
		d := w.of("decode-0")
		w.say(d, control.Notice{Incarnation: 1, Seq: 40, Kind: control.Gap})
		w.say(d, control.Notice{Incarnation: 1, Seq: 41, Kind: control.Imported, Label: "r1", ID: src, Bytes: 2048, Cached: 1, Phases: handoff.Phases{Move: 1500 * time.Microsecond}})
		w.say(d, control.Notice{Incarnation: 1, Seq: 42, Kind: control.Failed, Label: "evil\x1b[2J\nlabel", ID: src, Err: handoff.ErrAborted, SourceSafe: true})
		w.say(d, errors.New("the leader was killed"))
		w.say(d, control.Notice{Incarnation: 2, Seq: 0, Kind: control.Gap})
		w.say(d, control.Notice{Incarnation: 2, Seq: 1, Kind: control.Ready})
		w.say(w.views, []plugins.Group{group("decode-0", rank(13, 2))})
		p := group("prefill-0", rank(14, 3))
		w.say(w.views, []plugins.Group{group("decode-0", rank(13, 2)), p})
		w.say(w.of("prefill-0"), control.Notice{Incarnation: 3, Seq: 9, Kind: control.Gap, Lost: 9})
		w.say(w.of("prefill-0"), control.Notice{Incarnation: 3, Seq: 10, Kind: control.Exported, Label: "r2", Manifest: &handoff.Manifest{Tokens: 17}})
		w.say(w.views, errors.New("etcd is gone"))
		p.Instance = 0
		p.Size = 0
		w.say(w.views, []plugins.Group{group("decode-0", rank(13, 2)), p})
	})
	const want = `decode-0   here             decode, 1 rank, 256 blocks or more
prefill-0  here             decode, 1 rank, 256 blocks or more
decode-0   imported   r1    from prefill-0, 2.0 KiB in 1.5 ms (open 0.0, reserve 0.0, move 1.5, check 0.0, done 0.0, admit 0.0), 1 token cached
decode-0   failed     evil·[2J label  handoff: aborted; still held by prefill-0
decode-0   lost                       its leader: the leader was killed
decode-0   back                       its leader answers again
decode-0   gap                        its leader is another process: what it told before may be missing here
decode-0   ready                      every rank is attached
decode-0   rank-up                    rank 0 was started again: h:1, pid 13
prefill-0  gone                       no sidecar of it is registered
prefill-0  here                       decode, 1 rank, 256 blocks or more
prefill-0  gap                        9 notices came and went unseen
prefill-0  exported   r2              17 tokens held for an importer
           lost                       discovery: etcd is gone
           back                       discovery answers again
prefill-0  launched                   its engine detached
`
	if p := plainly(got); p != want || err != nil {
		t.Errorf("%v\n%s", err, p)
	}
}

// Each stream goes on where it was: at the newest of what was there at first, at the
// beginning of what came later, after the last notice of what was lost.
func TestWatchCursors(t *testing.T) {
	var w *world
	if _, err := watched(t, WatchOptions{}, func(x *world) {
		w = x
		w.say(w.views, []plugins.Group{group("a")})
		w.say(w.of("a"), control.Notice{Incarnation: 1, Seq: 5, Kind: control.Gap})
		w.say(w.of("a"), errors.New("lost"))
		w.say(w.of("a"), control.Notice{Incarnation: 1, Seq: 6, Kind: control.Ready})
		w.say(w.views, []plugins.Group{group("a"), group("b")})
		w.say(w.of("b"), control.Notice{Incarnation: 2, Seq: 1, Kind: control.Ready})
		w.say(w.views, []plugins.Group{group("a")})
		w.say(w.views, []plugins.Group{group("a"), group("b")})
	}); err != nil {
		t.Error(err)
	}
	want := []control.Cursor{control.Newest, {Incarnation: 1, Seq: 6}, {}, {Incarnation: 2, Seq: 2}}
	if len(w.from) != len(want) {
		t.Fatalf("%v", w.from)
	}
	for i := range want {
		if w.from[i] != want[i] {
			t.Errorf("stream %d from %+v, want %+v", i, w.from[i], want[i])
		}
	}
}

func TestWatchSome(t *testing.T) {
	var missed []string
	got, err := watched(t, WatchOptions{Groups: []string{"b", "x"}, Kept: true, Warn: func(g string, there []string) { missed = append(missed, g+" of "+strings.Join(there, ",")) }}, func(w *world) {
		w.say(w.views, []plugins.Group{group("a"), group("b")})
		w.say(w.views, []plugins.Group{group("a"), group("b"), group("x")})
		w.say(w.of("b"), control.Notice{Incarnation: 1, Seq: 5, Kind: control.Gap, Lost: 5})
	})
	if err != nil || strings.Contains(got, "a  ") || !strings.Contains(got, "x          here") || !strings.Contains(got, "5 notices") || strings.Join(missed, " ") != "x of a,b" {
		t.Errorf("%v %v\n%s", err, missed, got)
	}
}

func TestWatchNobody(t *testing.T) {
	var missed []string
	got, err := watched(t, WatchOptions{Warn: func(g string, there []string) { missed = append(missed, g) }}, func(w *world) {
		w.say(w.views, []plugins.Group(nil))
		w.say(w.views, []plugins.Group{{Name: "a", Ranks: []plugins.Rank{rank(1, 1)}}})
		w.say(w.views, []plugins.Group(nil))
	})
	const want = "a          here             1 sidecar, no engine yet\na          gone             no sidecar of it is registered\n"
	if p := plainly(got); err != nil || len(missed) != 1 || p != want {
		t.Errorf("%v %q\n%s", err, missed, p)
	}
}

func TestWatchFails(t *testing.T) {
	for _, c := range []struct {
		what string
		play func(w *world)
		want error
	}{
		{"no cluster was ever seen", func(w *world) { w.say(w.views, discovery.ErrDown) }, discovery.ErrDown},
		{"the first leader refuses this certificate", func(w *world) { w.say(w.views, []plugins.Group{group("a")}); w.say(w.of("a"), handoff.ErrDenied) }, handoff.ErrDenied},
		{"a later one does", func(w *world) {
			w.say(w.views, []plugins.Group{group("a"), group("b")})
			w.say(w.of("b"), control.Notice{Incarnation: 1, Seq: 1, Kind: control.Ready})
			w.say(w.of("a"), handoff.ErrDenied)
		}, nil},
	} {
		if _, err := watched(t, WatchOptions{}, c.play); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

func TestWatchJSON(t *testing.T) {
	got, err := watched(t, WatchOptions{JSON: true}, func(w *world) {
		w.say(w.views, []plugins.Group{group("d", rank(5, 10))})
		w.say(w.of("d"), control.Notice{Incarnation: 255, Seq: 1, Kind: control.Failed, Label: "<r>\n", ID: handoff.ID{Group: "p", Leader: 7, N: 3}, Err: handoff.ErrAborted})
		w.say(w.of("d"), control.Notice{Incarnation: 255, Seq: 2, Kind: control.Imported, Bytes: 7, Phases: handoff.Phases{Move: time.Millisecond}})
		w.say(w.views, []plugins.Group{group("d", rank(6, 11))})
	})
	if err != nil {
		t.Fatal(err)
	}
	var lines []map[string]any
	for l := range strings.Lines(got) {
		var m map[string]any
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		delete(m, "time")
		lines = append(lines, m)
	}
	b, _ := json.Marshal(lines)
	const want = `[{"event":"here","group":"d","state":{"capacity_blocks":256,"capacity_slots":0,"complete":true,"draining":false,"ranks":1,"role":"decode","size":1}},` +
		`{"error":"handoff.aborted","event":"failed","group":"d","handoff":"p@7.3","incarnation":"00000000000000ff","label":"\u003cr\u003e\n","seq":1,"source_safe":false,"why":"handoff: aborted"},` +
		`{"bytes":7,"event":"imported","group":"d","incarnation":"00000000000000ff","ms":{"admit":0,"check":0,"done":0,"move":1,"open":0,"reserve":0},"seq":2},` +
		`{"addr":"h:1","event":"rank-up","group":"d","incarnation":"000000000000000b","pid":6,"rank":0}]`
	if string(b) != want {
		t.Errorf("%s", b)
	}
}

// TestLinked: a link is a line with its reason, its rates, and what to do about it.
func TestLinked(t *testing.T) {
	l := handoff.Link{Peer: handoff.Member{Group: "p", Rank: 3}, Choice: choice.Choice{Transport: "tcp", Code: choice.Lacks, Why: "other host: tcp, because\x1b"},
		Measured: choice.Measured{Rate: 5e6}, Expected: 1e9, Finding: choice.Finding{Verdict: choice.Degraded, Cause: "slow", Fix: "look"}}
	e := ofNotice("d", control.Notice{Kind: control.Linked, Label: "rank 0", Link: &l})
	if want := "from p/3: other host: tcp, because·, 5 MB/s of 1000; degraded: slow: look"; e.text != want || e.What != "link" {
		t.Errorf("%s %q, want %q", e.What, e.text, want)
	}
	if r := e.record(time.Time{}).Link; r == nil || !r.Fallback || r.Peer != "p/3" || r.Verdict != "degraded" || r.Expected != 1e9 {
		t.Errorf("%+v", r)
	}
	if e := ofNotice("d", control.Notice{Kind: control.Linked}); e.text != "" || e.record(time.Time{}).Link != nil {
		t.Errorf("a notice without its link: %+v", e)
	}
}

func TestWatchColor(t *testing.T) {
	got, err := watched(t, WatchOptions{Color: true}, func(w *world) {
		w.say(w.views, []plugins.Group{group("d")})
		w.say(w.of("d"), control.Notice{Seq: 1, Kind: control.NotReady, Label: "\x1b[31m"})
	})
	if err != nil || !strings.Contains(got, red+"not-ready") || strings.Count(got, "\x1b[31m") != 1 {
		t.Errorf("%v %q", err, got)
	}
}
