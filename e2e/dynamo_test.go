package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	requests "github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/plugins/adapter/dynamo/worker"
	"github.com/batonkv/baton/sidecar/control"
)

// deployment is a cluster that has joined a Dynamo deployment on files, with a worker of
// `baton dynamo-worker` for each group.
type deployment struct {
	*world
	folder  string
	section string // the file with the adapter's keys

	workers []attendant // of Groups
}

// attendant is a worker of `baton dynamo-worker`.
type attendant struct {
	cmd    *exec.Cmd
	status string // ip:port of its /health and /metrics
	group  *dev.Running
}

func deploy(t *testing.T, shards, model string, change ...func(*dev.Options)) *deployment {
	return deployWith(t, "", shards, model, change...)
}

// deployWith has more keys of the adapter.
func deployWith(t *testing.T, more, shards, model string, change ...func(*dev.Options)) *deployment {
	d := &deployment{folder: t.TempDir()}
	keys := "namespace: dynamo\ndiscovery: file\nfolder: " + d.folder + "\n" + more
	d.section = filepath.Join(t.TempDir(), "dynamo.yaml")
	if err := os.WriteFile(d.section, []byte(keys), 0o600); err != nil {
		t.Fatal(err)
	}
	d.world = up(t, shards, model, append(change, func(o *dev.Options) {
		o.Adapters = func(dev.Group) []config.Adapter {
			return []config.Adapter{{Name: "dynamo", BuiltIn: "dynamo", Section: keys}}
		}
	})...)
	for _, g := range d.Groups {
		d.workers = append(d.workers, d.serve(g))
	}
	return d
}

// serve starts a worker for g, which ends in order with the test.
func (d *deployment) serve(g *dev.Running) attendant {
	status := freeAddr(d.t)
	cmd := exec.Command(binary, "dynamo-worker", "--role", string(g.Role), "--front", g.Front(), "--config", d.section, "--model", "tiny",
		"--model-path", tokenizer, "--group", g.Name, "--system", status, "--grace", "0s")
	cmd.Stderr = d.log
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)                                           // it may have gone
		if err := cmd.Wait(); err != nil && !strings.Contains(err.Error(), "killed") { // as a test may do
			d.t.Errorf("dynamo-worker of %s: %v", g.Name, err)
		}
	})
	return attendant{cmd, status, g}
}

// gone waits until the worker has ended by itself, in order.
func (w attendant) gone(t *testing.T) {
	t.Helper()
	watch(t, w.cmd.Process.Pid).gone(t, "worker of "+w.group.Name)
}

// target waits for the instance of an endpoint.
func (d *deployment) target(component, endpoint string) (to requests.Target) {
	d.t.Helper()
	files, err := directory.OpenFiles(d.folder)
	if err != nil {
		d.t.Fatal(err)
	}
	for s, err := range files.Watch(bounded(d.t), directory.Instances+"dynamo/"+component+"/"+endpoint+"/") {
		if err != nil {
			d.t.Fatal(err)
		}
		if len(s) == 0 {
			continue
		}
		var i directory.Instance
		if err := json.Unmarshal(s[0].Value, &i); err != nil {
			d.t.Fatal(err)
		}
		to.Codec = wire.Msgpack
		to.Address, to.Path, _ = i.Called()
		return to
	}
	return to
}

// ended waits until no group holds or runs a hand-off.
func (d *deployment) ended() {
	d.t.Helper()
	for _, g := range d.Groups {
		eventually(d.t, g.Name+" holds nothing", func() bool {
			p, err := g.Leader.List(bounded(d.t), control.Query{Live: true})
			if err != nil {
				d.t.Fatal(err)
			}
			return len(p.Infos) == 0
		})
	}
}

// whole is what one engine generates.
func (d *deployment) whole(tokens []int32) []int32 {
	d.t.Helper()
	return d.wholeOf(d.decode, tokens)
}

func (d *deployment) wholeOf(g *dev.Running, tokens []int32) (got []int32) {
	d.t.Helper()
	if _, err := generate(bounded(d.t), g, front.Request{Tokens: tokens, MaxNew: maxNew, Mode: front.Full}, &got); err != nil {
		d.t.Fatal(err)
	}
	return got
}

// TestDynamoDisaggregated: a Dynamo client has one engine prefill and another decode, whose
// layout differs, and the tokens are those of one engine.
func TestDynamoDisaggregated(t *testing.T) {
	python := os.Getenv("BATON_DYNAMO")
	if python == "" {
		need.Skip(t, "dynamo", "BATON_DYNAMO names no Python with ai-dynamo-runtime")
	}
	d := deploy(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid")
	d.target("prefill", "generate")
	d.target("backend", "generate")
	type order struct {
		Tokens []int32 `json:"tokens"`
		MaxNew int     `json:"max_new"`
	}
	var orders bytes.Buffer
	var prompts [][]int32
	for n := range 6 {
		prompts = append(prompts, prompt(n+1, 20+13*n))
		b, err := json.Marshal(order{prompts[n], maxNew})
		if err != nil {
			t.Fatal(err)
		}
		orders.Write(append(b, '\n'))
	}
	cmd := exec.CommandContext(bounded(t), python, "testdata/disagg.py")
	cmd.Env = append(os.Environ(), "DYN_DISCOVERY_BACKEND=file", "DYN_FILE_KV="+d.folder, "DYN_LOG=error", "DYN_TCP_RPC_HOST=127.0.0.1")
	cmd.Stdin, cmd.Stderr = &orders, d.log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var answers int
	for line := range strings.Lines(string(out)) {
		text, ok := strings.CutPrefix(line, "=> ")
		if !ok {
			continue
		}
		var got struct {
			Tokens, First []int32
			Finish        string
			Carrier       []string
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		want := d.whole(prompts[answers])
		if !slices.Equal(got.Tokens, want) || got.First[0] != want[0] || !slices.Equal(got.Carrier, []string{dynamo.Carrier}) {
			t.Errorf("prompt %d: %+v, want %v", answers, got, want)
		}
		answers++
	}
	if answers != len(prompts) {
		t.Errorf("%d answers of %d:\n%s", answers, len(prompts), out)
	}
	d.ended()
}

// TestDynamoReleases: a hand-off that decode does not import is held by nobody afterwards,
// also when the worker that answered with it was killed meanwhile.
func TestDynamoReleases(t *testing.T) {
	d := deploy(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid")
	c, err := requests.NewClient("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func(to requests.Target, q worker.Request) (o worker.Output, err error) {
		a, err := c.Call(bounded(t), to, q)
		if err != nil {
			return o, err
		}
		defer a.Close()
		return o, a.Next(bounded(t), &o)
	}
	tokens := prompt(1, 40)
	first, err := ask(d.target("prefill", "generate"), worker.Request{Tokens: tokens})
	if err != nil || len(first.Params) != 1 {
		t.Fatal(first, err)
	}
	eventually(t, "the source holds it", func() bool {
		p, err := d.prefill.Leader.List(bounded(t), control.Query{Live: true})
		return err == nil && len(p.Infos) == 1
	})
	to := d.target("backend", "generate")
	if err := d.workers[0].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Decode with another prompt than the manifest's: the import is refused.
	_, err = ask(to, worker.Request{Tokens: prompt(2, 30), Prefill: &worker.PrefillResult{Params: first.Params}})
	if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Kind() != wire.InvalidArgument || !strings.HasPrefix(f.Message, "handoff.position: ") {
		t.Fatalf("another prompt was decoded, or refused with %v", err)
	}
	d.ended()
}
