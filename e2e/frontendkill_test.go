package e2e

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/events"
)

// TestFrontendKills: a process that is killed in the middle of a hand-off costs its users an
// error at most. No token is wrong, the hand-off is released once, or by its lease, and the
// requests of others go on.
func TestFrontendKills(t *testing.T) {
	const twoSources, twoTargets = "tp=1,dp=2,role=prefill+tp=2,role=decode", "tp=2,role=prefill+tp=1,dp=2,role=decode"
	for _, c := range []struct {
		what, shards string
		role         discovery.Role
		pid          func(w attendant) int
	}{
		{"worker of prefill", twoSources, discovery.Prefill, func(w attendant) int { return w.cmd.Process.Pid }},
		{"worker of decode", twoTargets, discovery.Decode, func(w attendant) int { return w.cmd.Process.Pid }},
		{"engine of prefill", twoSources, discovery.Prefill, func(w attendant) int { return w.group.Ranks[0].Engine.PID }},
		{"engine of decode", twoTargets, discovery.Decode, func(w attendant) int { return w.group.Ranks[0].Engine.PID }},
	} {
		t.Run(c.what, func(t *testing.T) {
			leased := strings.HasPrefix(c.what, "worker") // nobody is left to release what it had
			f := frontend(t, "round-robin", c.shards, func(o *dev.Options) {
				if leased {
					o.Lease = 8 * time.Second
				}
			})
			f.ended()
			var sources []<-chan events.Event
			for _, g := range f.Groups {
				if g.Role == discovery.Prefill {
					sources = append(sources, f.events(g))
				}
			}
			moving := f.events(f.decode)
			movers := f.localMovers(f.decode)
			for _, m := range movers {
				m.halt(t)
				t.Cleanup(func() { _ = unix.PidfdSendSignal(m.fd, unix.SIGCONT, nil, 0) })
			}
			good, stop := f.users(3)
			source := f.nextMoving(moving)
			victim := slices.IndexFunc(f.workers, func(w attendant) bool {
				return w.group.Role == c.role && (c.role == discovery.Decode || w.group.Name == source)
			})
			killed(t, c.pid(f.workers[victim]))
			for _, m := range movers {
				m.signal(t, unix.SIGCONT)
			}
			for range 12 {
				select {
				case <-good:
				case <-bounded(t).Done():
					t.Fatal("requests do not go on")
				}
			}
			stop()
			f.ended()
			for _, ch := range sources {
				f.releasedOnce(ch, leased)
			}
		})
	}
}

// TestFrontendCancel: a caller that goes while bytes move frees nothing until they do not, and
// then everything.
func TestFrontendCancel(t *testing.T) {
	f := frontend(t, "kv", twoToOne)
	f.ended()
	source, moving := f.events(f.prefill), f.events(f.decode)
	movers := f.localMovers(f.decode)
	for _, m := range movers {
		m.halt(t)
		t.Cleanup(func() { _ = unix.PidfdSendSignal(m.fd, unix.SIGCONT, nil, 0) })
	}
	ctx, cancel := context.WithCancel(bounded(t))
	done := make(chan error, 1)
	go func() { _, err := f.try(ctx, text(1, 60)); done <- err }()
	f.nextMoving(moving)
	cancel()
	if err := <-done; err == nil {
		t.Error("it was answered")
	}
	// The end of the call has come to the engine when the worker counts it.
	eventually(t, "the worker hears that the caller is gone", func() bool {
		return scrape(t, f.workers[1].status, "dynamo_component_cancellation_total") == 1
	})
	if p := f.pool(f.decode); p.Imports != 1 {
		t.Errorf("while bytes may come the engine holds %+v", p)
	}
	for _, m := range movers {
		m.signal(t, unix.SIGCONT)
	}
	f.ended()
	f.releasedOnce(source, false)
	for _, g := range f.Groups {
		f.allFree(g, poolBlocks, poolSlots)
	}
}

// TestFrontendDrain: a worker that is told to end ends the streams that run, whole, before it does.
func TestFrontendDrain(t *testing.T) {
	f := frontend(t, "kv", twoToOne)
	prompt, w := text(1, 60), f.workers[1]
	resp, err := f.post(bounded(t), "completions", ask{Prompt: prompt, Max: 400, Ignore: true, Stream: true, Logprobs: 1, AsIDs: true})
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() {
		t.Fatal("no stream", lines.Err())
	}
	if err := w.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n, finish := 0, ""
	for more := true; more; more = lines.Scan() {
		line, is := strings.CutPrefix(lines.Text(), "data: ")
		if !is || line == "[DONE]" {
			continue
		}
		var a told
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		ids, end, err := a.tokens()
		if err != nil {
			t.Fatal(err)
		}
		n, finish = n+len(ids), cmp.Or(end, finish)
	}
	if n != 400 || finish != "length" {
		t.Errorf("%d tokens, %q", n, finish)
	}
	w.gone(t)
	f.ended()
}

// nextMoving is the group that the hand-off comes from of which bytes move next.
func (f *fronted) nextMoving(ch <-chan events.Event) (group string) {
	f.t.Helper()
	for ctx := bounded(f.t); ; {
		select {
		case e := <-ch:
			if e.Kind == events.Moving {
				group, _, _ = strings.Cut(e.Handoff, "@")
				return group
			}
		case <-ctx.Done():
			f.t.Fatal("no hand-off moves")
		}
	}
}

// users have prompts completed, one after the other each, until stop, which waits for them. good
// tells of each answer that is whole; an error is met with another try.
func (f *fronted) users(n int) (good <-chan struct{}, stop func()) {
	type prompt struct {
		text string
		want []int32
	}
	var prompts []prompt
	last := f.Groups[len(f.Groups)-1]
	for i := range 2 * n {
		p := prompt{text: text(100+i, 40+15*i)}
		if last.Role != discovery.Decode {
			f.t.Fatal("the last group does not decode")
		}
		p.want = f.wholeOf(last, model.Encode(p.text))
		prompts = append(prompts, p)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	whole := make(chan struct{}, 1024)
	var all sync.WaitGroup
	for u := range n {
		all.Go(func() {
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for i := u; ctx.Err() == nil; i++ {
				p := prompts[i%len(prompts)]
				got, err := f.try(ctx, p.text)
				switch {
				case err == nil && !slices.Equal(got, p.want):
					f.t.Errorf("%q: tokens %v, one engine gives %v", p.text, got, p.want)
				case err == nil:
					select {
					case whole <- struct{}{}:
					default:
					}
				}
				<-pace.C
			}
		})
	}
	return whole, func() { cancel(); all.Wait() }
}

// try asks once.
func (f *fronted) try(ctx context.Context, prompt string) ([]int32, error) {
	resp, err := f.post(ctx, "completions", ask{Prompt: prompt, Max: maxNew, Logprobs: 1, AsIDs: true})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(string(b))
	}
	var a told
	if err := json.Unmarshal(b, &a); err != nil {
		return nil, err
	}
	tokens, _, err := a.tokens()
	return tokens, err
}
