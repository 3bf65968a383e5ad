package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
)

// routers is a process with KV routers of Dynamo's, one for each endpoint.
type routers struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// route starts one for both kinds of workers.
func (d *deployment) route(python string) *routers {
	r := &routers{t: d.t, cmd: exec.Command(python, "../plugins/adapter/dynamo/testdata/peer.py")}
	r.cmd.Env = append(os.Environ(), "DYN_DISCOVERY_BACKEND=file", "DYN_FILE_KV="+d.folder, "DYN_EVENT_PLANE=zmq", "DYN_LOG=error", "DYN_TCP_RPC_HOST=127.0.0.1")
	r.cmd.Stderr = d.log
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		d.t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	r.out = bufio.NewScanner(out)
	d.t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // it may have gone
		_ = r.cmd.Wait()
	})
	for _, at := range []string{prefillAt, decodeAt} {
		r.ask(map[string]any{"do": "wait", "endpoint": at}, nil)
		// A router of decode workers hears KV events when it may have them prefill, too.
		r.ask(map[string]any{"do": "router", "endpoint": at, "block": block, "config": map[string]any{"conditional_disagg_enabled": at == decodeAt}}, nil)
	}
	return r
}

// Endpoints of workers.
const (
	prefillAt = "dynamo.prefill.generate"
	decodeAt  = "dynamo.backend.generate"
)

// ask asks, and waits for the answer.
func (r *routers) ask(q map[string]any, into any) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(bounded(r.t))
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = r.cmd.Process.Kill() })()
	q["n_"] = 0
	b, err := json.Marshal(q)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.in.Write(append(b, '\n')); err != nil {
		r.t.Fatal(err)
	}
	for r.out.Scan() {
		line, ok := strings.CutPrefix(r.out.Text(), "=> ")
		if !ok {
			continue
		}
		var a struct {
			Is    json.RawMessage
			Error string
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil || a.Error != "" {
			r.t.Fatalf("%v: %s, %v", q["do"], a.Error, err)
		}
		if into != nil {
			if err := json.Unmarshal(a.Is, into); err != nil {
				r.t.Fatal(err)
			}
		}
		return
	}
	r.t.Fatalf("%v: no answer: %v", q["do"], r.out.Err())
}

// expects waits until the router of an endpoint expects a worker to have n blocks of a prompt.
func (r *routers) expects(at, worker string, prompt []int32, n int) {
	r.t.Helper()
	var took float64
	r.ask(map[string]any{"do": "overlap", "endpoint": at, "worker": worker, "tokens": prompt, "want": n}, &took)
	r.t.Logf("%d blocks expected after %.3f s", n, took)
}

// best is where the router of an endpoint sends a prompt, and how many blocks it expects there.
func (r *routers) best(at string, prompt []int32) (worker string, blocks int) {
	r.t.Helper()
	var b struct {
		Worker string
		Blocks int
	}
	r.ask(map[string]any{"do": "best", "endpoint": at, "tokens": prompt}, &b)
	return b.Worker, b.Blocks
}

// ids are the workers by group, as routers name them.
func (d *deployment) ids() map[string]string {
	d.t.Helper()
	files, err := directory.OpenFiles(d.folder)
	if err != nil {
		d.t.Fatal(err)
	}
	for s, err := range files.Watch(bounded(d.t), directory.Models+"dynamo/") {
		if err != nil {
			d.t.Fatal(err)
		}
		ids := map[string]string{}
		for _, r := range s {
			var m directory.Model
			var card struct {
				Type    string `json:"worker_type"`
				Runtime struct {
					Data map[string]any `json:"runtime_data"`
				} `json:"runtime_config"`
			}
			if json.Unmarshal(r.Value, &m) == nil && json.Unmarshal(m.Card, &card) == nil && card.Type != "" {
				ids[fmt.Sprint(card.Runtime.Data["baton_group"])] = fmt.Sprint(m.ID)
			}
		}
		if len(ids) == len(d.Groups) {
			return ids
		}
	}
	return nil
}

// routed completes a prompt and says which workers had it, and which part of it the router
// expected prefill to have.
func (f *fronted) routed(prompt string) (prefill, decode string, rate float64) {
	f.t.Helper()
	status, body := f.answer("completions", ask{Prompt: prompt, Max: maxNew, Ext: &asking{[]string{"worker_id", "timing"}}})
	var a struct {
		Ext struct {
			Workers struct {
				Prefill json.Number `json:"prefill_worker_id"`
				Decode  json.Number `json:"decode_worker_id"`
			} `json:"worker_id"`
			Timing struct {
				Rate float64 `json:"kv_hit_rate"`
			} `json:"timing"`
		} `json:"nvext"`
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil || status != http.StatusOK {
		f.t.Fatalf("%d %s: %v", status, body, err)
	}
	return a.Ext.Workers.Prefill.String(), a.Ext.Workers.Decode.String(), a.Ext.Timing.Rate
}

// TestFrontendPrefixes: a prompt goes where its prefix is, and nowhere for one that is no more;
// imports count, and what a sidecar that was killed had told is told again.
func TestFrontendPrefixes(t *testing.T) {
	python := dynamoPython(t)
	f := deployWith(t, "kv: {events: zmq}", "tp=2,role=prefill+tp=1,role=prefill+tp=1,role=decode", "attention", func(o *dev.Options) {
		o.Restart = true
		o.Blocks = 48
	}).front(python, "kv")
	r, ids := f.route(python), f.ids()
	const blocks, more = 10, 2 // of a prefix, and of what follows it
	prefix, n := "", 0
	var had string
	// The frontend hears of a prompt at about the time when r does.
	eventually(t, "the frontend routes by prefixes", func() bool {
		n++
		prefix = text(n, blocks*block)
		var decode string
		had, decode, _ = f.routed(prefix)
		r.expects(prefillAt, had, model.Encode(prefix), blocks)
		r.expects(decodeAt, decode, model.Encode(prefix), blocks)
		again, _, rate := f.routed(prefix + text(-n, more*block))
		return again == had && rate == float64(blocks)/(blocks+more)
	})
	tokens, g := model.Encode(prefix), f.Groups[slices.IndexFunc(f.Groups, func(g *dev.Running) bool { return ids[g.Name] == had })]
	longer := model.Encode(prefix + text(0, more*block))
	if worker, expected := r.best(prefillAt, longer); worker != had || expected != blocks {
		t.Errorf("%d blocks are expected at %s, want %d at %s", expected, worker, blocks, had)
	}
	for name, id := range ids {
		if id != had && id != ids[f.decode.Name] {
			r.expects(prefillAt, id, tokens, 0)
			t.Log(name, "has nothing of it")
		}
	}

	f.kill(victim{group: func(*world) *dev.Running { return g }})
	later := prompt(1, blocks*block)
	if _, err := generate(bounded(t), g, front.Request{Tokens: later, MaxNew: 1, Mode: front.Full}, nil); err != nil {
		t.Fatal(err)
	}
	r.expects(prefillAt, had, later, blocks) // the next life tells
	r.expects(prefillAt, had, tokens, blocks)

	for i := range 4 { // more than the cache has
		if _, err := generate(bounded(t), g, front.Request{Tokens: prompt(2+i, blocks*block), MaxNew: 1, Mode: front.Full}, nil); err != nil {
			t.Fatal(err)
		}
	}
	r.expects(prefillAt, had, prompt(5, blocks*block), blocks)
	r.expects(prefillAt, had, tokens, 0)
	if _, err := generate(bounded(t), g, front.Request{Mode: front.Reset}, nil); err != nil {
		t.Fatal(err)
	}
	r.expects(prefillAt, had, prompt(5, blocks*block), 0)
	if _, expected := r.best(prefillAt, longer); expected != 0 {
		t.Errorf("%d blocks of what is forgotten are expected", expected)
	}
}
