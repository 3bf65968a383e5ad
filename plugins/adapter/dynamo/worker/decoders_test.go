package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// TestMost: a prompt is held against the largest decode worker of its model, and against none
// while one of them does not tell.
func TestMost(t *testing.T) {
	const prefill, other, told = `{"display_name":"tiny","worker_type":"prefill"}`, `{"display_name":"big","worker_type":"decode"}`,
		`{"display_name":"tiny","worker_type":"decode","kv_cache_block_size":16,"runtime_config":{"runtime_data":{"more":1},"total_kv_blocks":%d}}`
	for i, c := range []struct {
		cards []string
		want  int64
	}{
		{nil, 0},
		{[]string{prefill, other}, 0},
		{[]string{fmt.Sprintf(told, 4), prefill, fmt.Sprintf(told, 9), other}, 145},
		{[]string{`{"display_name":"tiny","model_type":"Prefill"}`, fmt.Sprintf(told, 2)}, 33},
		{[]string{fmt.Sprintf(told, 4), `{"display_name":"tiny","kv_cache_block_size":16}`}, 0},
		{[]string{fmt.Sprintf(told, 1<<40)}, 0},
		{[]string{fmt.Sprintf(told, -4)}, 0},
		{[]string{fmt.Sprintf(told, 4), `7`}, 0},
	} {
		var s directory.Snapshot
		for n, card := range c.cards {
			r, err := directory.NewModel(directory.Endpoint{Namespace: "dynamo", Component: "c", Name: "generate"}, uint64(n), json.RawMessage(card)).Record()
			if err != nil {
				t.Fatal(err)
			}
			s = append(s, r)
		}
		if got := (&decoders{model: "tiny"}).most(s); got != c.want {
			t.Errorf("%d: %d, want %d", i, got, c.want)
		}
	}
}

// TestComesBack: what a worker held that is gone for a moment may be asked again; for ever is only
// what none held lately.
func TestComesBack(t *testing.T) {
	at := time.Unix(1000, 0)
	var d decoders
	kind := func(n int, after time.Duration) string {
		f, _ := errors.AsType[*wire.Fault](d.tooLong(n, at.Add(after)))
		if f == nil {
			return ""
		}
		return f.Kind()
	}
	want := func(after time.Duration, kinds ...string) {
		t.Helper()
		for i, n := range []int{33, 65, 145, 146} {
			if got := kind(n, after); got != kinds[i] {
				t.Errorf("%d tokens after %v: %q, want %q", n, after, got, kinds[i])
			}
		}
	}
	want(0, "", "", "", "")
	d.see(145, at)
	want(0, "", "", "", wire.InvalidArgument)
	d.see(65, at) // the largest drains
	want(comesBack-1, "", "", wire.Unavailable, wire.InvalidArgument)
	want(comesBack, "", "", wire.InvalidArgument, wire.InvalidArgument)
	d.see(33, at.Add(comesBack-1)) // and the second
	want(2*comesBack-2, "", wire.Unavailable, wire.Unavailable, wire.InvalidArgument)
	d.see(0, at.Add(2*comesBack)) // nothing is known
	want(2*comesBack, "", "", "", "")
	d.see(33, at.Add(2*comesBack+1))
	want(2*comesBack+1, "", wire.InvalidArgument, wire.InvalidArgument, wire.InvalidArgument)
	d.see(145, at.Add(2*comesBack+2))
	want(2*comesBack+2, "", "", "", wire.InvalidArgument)
}

// attendOne has a worker's engine tell once how many tokens it holds.
func (r *rig) attendOne(room int32) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.ctx())
	defer cancel()
	looks := 0
	r.worker.attend(ctx, closed(), func(context.Context) (int32, error) {
		if looks++; looks == 2 {
			cancel()
		}
		return room, nil
	})
	if err := r.worker.Ready(r.ctx()); err != nil {
		r.t.Fatal(err)
	}
}

func closed() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}

// TestNobodyDecodes: what no decode worker can hold is not prefilled, and a request without a
// limit gets what fits.
func TestNobodyDecodes(t *testing.T) {
	d := newRig(t, discovery.Decode, true)
	d.attendOne(33)
	prompt := make([]int32, 31)
	if tokens, _, err := d.rest(d.call(Request{Tokens: prompt})); err != nil || len(tokens) != 2 {
		t.Errorf("of 4 tokens 2 fit: %v %v", tokens, err)
	}
	if tokens, _, err := d.rest(d.call(Request{Tokens: prompt, Stop: limitOf(3)})); err != nil || len(tokens) != 3 {
		t.Errorf("the engine refuses, not the worker: %v %v", tokens, err)
	}
	p := &Worker{cfg: Config{Dynamo: d.cfg, Model: "tiny", MaxNew: 4, Log: d.log}}
	p.others = followDecoders(d.files, p.cfg)
	t.Cleanup(p.others.close)
	for ctx := d.ctx(); p.others.tooLong(34, time.Now()) == nil; runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatal("the card of decode is not seen")
		}
	}
	refuses := func(q Request) bool {
		t.Helper()
		b, err := wire.Msgpack.Encode(q)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = p.job(plane.Call{Codec: wire.Msgpack, Body: b})
		if err == nil {
			return false
		}
		if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Kind() != wire.InvalidArgument || !strings.HasPrefix(f.Message, "handoff.capacity: ") {
			t.Errorf("%v", err)
		}
		return true
	}
	for _, c := range []struct {
		q    Request
		want bool
	}{{Request{Tokens: make([]int32, 32), Stop: limitOf(1)}, false}, {Request{Tokens: make([]int32, 33), Stop: limitOf(1)}, true}, {Request{Tokens: make([]int32, 32)}, false},
		{Request{Tokens: make([]int32, 30), Stop: limitOf(4)}, true}} {
		if got := refuses(c.q); got != c.want {
			t.Errorf("%d tokens: refused is %v", len(c.q.Tokens), got)
		}
	}
}
