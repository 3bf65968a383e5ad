package bench

import (
	"bufio"
	"bytes"
	"context"
	_ "embed" // of dynamoPeer
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

//go:embed dynamo.py
var dynamoPeer string

const (
	envDynamo    = "BATON_DYNAMO" // a Python that has ai-dynamo-runtime
	batonCalls   = "dynamo.baton.handoff"
	pythonCalls  = "dynamo.python.handoff"
	promptTokens = 1024
	atOnce       = 32
	turns        = 4   // of a rate
	rateCalls    = 128 // of a turn
	startWithin  = 2 * time.Minute
)

// dynamoCost measures calls of Dynamo's Python client: of the adapter's endpoint handoff, whose
// group answers at once, and of a Python worker of Dynamo's that gives back the same item. It
// ends with kvEvents.
func dynamoCost(ctx context.Context, o Options) (out []Result, err error) {
	python := os.Getenv(envDynamo)
	if python == "" {
		o.Progress("dynamo: no row: " + envDynamo + " names no Python with ai-dynamo-runtime (plugins/adapter/dynamo/testdata/requirements.txt)")
		return nil, nil
	}
	folder, err := os.MkdirTemp("", "baton-bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	a, err := joinDynamo(ctx, folder, nil)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	worker, err := startDynamo(python, folder, dynamoPeer, "worker", pythonCalls)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, worker.close()) }()
	client, err := startDynamo(python, folder, dynamoPeer, "client", batonCalls, pythonCalls)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	if err := client.ready(ctx); err != nil {
		return nil, err
	}
	if out, err = compareDynamo(ctx, o, client, worker.cmd.Process.Pid); err != nil {
		return nil, err
	}
	r, err := kvEvents(ctx, o, python)
	return append(out, r), err
}

// compareDynamo has client call both, of which the worker is a process of its own.
func compareDynamo(ctx context.Context, o Options, client *dynamoProcess, worker int) ([]Result, error) {
	one := Result{Name: "dynamo/handoff", What: fmt.Sprintf("a handoff call of Dynamo's Python client, %d tokens and a manifest, one at a time", promptTokens),
		Unit: "x of the same call of Dynamo's own Python worker", BaseUnit: "us"}
	many := Result{Name: "dynamo/calls", What: fmt.Sprintf("handoff calls a second of that client, %d at once", atOnce),
		Unit: "x of Dynamo's own Python worker", BaseUnit: "calls/s"}
	cost := Result{Name: "dynamo/cpu", What: "processor time of the server for those calls", Unit: "x of Dynamo's own Python worker", BaseUnit: "us a call"}
	var us, rate, spent []float64
	for n := range 1 + o.Rounds { // the first one is for connections, caches, schedulers
		var took map[string][]float64
		var rates map[string]float64
		if err := client.ask(ctx, "latency", 50, &took); err != nil {
			return nil, err
		}
		before, err := processors(os.Getpid(), worker)
		if err == nil {
			err = client.ask(ctx, "rate", rateCalls, &rates)
		}
		if err != nil {
			return nil, err
		}
		after, err := processors(os.Getpid(), worker)
		if err != nil {
			return nil, err
		}
		mine, its := (after[0]-before[0])/(turns*rateCalls), (after[1]-before[1])/(turns*rateCalls)
		if len(took[batonCalls]) == 0 || len(took[pythonCalls]) == 0 || rates[pythonCalls] == 0 || its == 0 {
			return nil, errors.New("dynamo: the client measured nothing")
		}
		if n == 0 {
			continue
		}
		ours, base := Median(took[batonCalls]), Median(took[pythonCalls])
		us, rate = append(us, ours), append(rate, rates[batonCalls])
		one.Samples, one.Baseline = append(one.Samples, ours/base), append(one.Baseline, base)
		spent = append(spent, mine)
		cost.Samples, cost.Baseline = append(cost.Samples, mine/its), append(cost.Baseline, its)
		many.Samples, many.Baseline = append(many.Samples, rates[batonCalls]/rates[pythonCalls]), append(many.Baseline, rates[pythonCalls])
	}
	one.Note = fmt.Sprintf("p50 %s us, Dynamo's %s", figure(Median(us)), figure(Median(one.Baseline)))
	many.Note = fmt.Sprintf("%s, Dynamo's %s", figure(Median(rate)), figure(Median(many.Baseline)))
	cost.Note = fmt.Sprintf("%s us a call, Dynamo's %s", figure(Median(spent)), figure(Median(cost.Baseline)))
	return []Result{AtMost(one, 1), AtLeast(many, 1), AtMost(cost, 1)}, nil
}

// processors is the processor time that processes have had, in microseconds.
func processors(pids ...int) (us []float64, err error) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return nil, err
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		if len(f) < 13 {
			return nil, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
		}
		user, err := strconv.ParseFloat(f[11], 64)
		system, err2 := strconv.ParseFloat(f[12], 64)
		if err = errors.Join(err, err2); err != nil {
			return nil, err
		}
		us = append(us, (user+system)*1e6/100) // Linux counts in hundredths
	}
	return us, nil
}

// joinDynamo serves a group without a sidecar, whose hand-offs end at once. Routers are told of
// the blocks of cache, unless it is nil.
func joinDynamo(ctx context.Context, folder string, cache adapter.BlockFeed) (*dynamo.Adapter, error) {
	a, section := &dynamo.Adapter{}, "namespace: dynamo\ndiscovery: file\nfolder: "+folder
	if cache != nil {
		section += "\nkv: {events: zmq}"
	}
	if err := a.Configure(ctx, []byte(section)); err != nil {
		return nil, err
	}
	if cache != nil {
		a.ReadBlocks(cache)
	}
	a.Ask(prompt{})
	group := adapter.Group{Name: "d", Pool: "bench", Role: discovery.Decode, Model: "none", Status: control.Status{Ready: true}}
	if err := a.Sync(ctx, adapter.State{Group: group}); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// prompt is a group that answers at once.
type prompt struct{}

func (prompt) Import(_ context.Context, m handoff.Import) (handoff.Imported, error) {
	return handoff.Imported{Label: m.Label, ID: m.Manifest.ID, Bytes: 1 << 20}, nil
}

func (prompt) Get(context.Context, handoff.ID) (control.Info, error) {
	return control.Info{}, handoff.ErrUnknown
}

func (prompt) List(context.Context, control.Query) (control.Page, error) { return control.Page{}, nil }

func (prompt) Abort(context.Context, handoff.ID, handoff.Key) error { return handoff.ErrUnknown }

func (prompt) Release(context.Context, handoff.ID, handoff.Key) error { return handoff.ErrUnknown }

// dynamoProcess is one of Dynamo's own.
type dynamoProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out chan string // lines that answer; closes with the process
}

func startDynamo(python, folder, program string, args ...string) (*dynamoProcess, error) {
	p := &dynamoProcess{cmd: exec.Command(python, append([]string{"-c", program}, args...)...), out: make(chan string, 1)}
	p.cmd.Env = append(os.Environ(), "DYN_DISCOVERY_BACKEND=file", "DYN_FILE_KV="+folder, "DYN_LOG=error", "DYN_TCP_RPC_HOST=127.0.0.1")
	p.cmd.Stderr = calm{}
	in, err := p.cmd.StdinPipe()
	out, err2 := p.cmd.StdoutPipe()
	if err = errors.Join(err, err2); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.in = in
	go func() {
		defer close(p.out)
		s := bufio.NewScanner(out)
		s.Buffer(nil, 16<<20)
		for s.Scan() {
			if line, ok := strings.CutPrefix(s.Text(), "=> "); ok {
				p.out <- line
			}
		}
	}()
	return p, nil
}

// calm leaves out the line that Dynamo writes of each call.
type calm struct{}

func (calm) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("request_span")) {
		return len(b), nil
	}
	return os.Stderr.Write(b)
}

// line is the next answer.
func (p *dynamoProcess) line(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	select {
	case s, ok := <-p.out:
		if !ok {
			return "", errors.New("dynamo: a Python process has ended; what it said is above")
		}
		return s, nil
	case <-ctx.Done():
		return "", fmt.Errorf("dynamo: a Python process does not answer: %w", ctx.Err())
	}
}

func (p *dynamoProcess) ready(ctx context.Context) error {
	_, err := p.line(ctx)
	return err
}

// ask has n calls of each endpoint made.
func (p *dynamoProcess) ask(ctx context.Context, what string, n int, into any) error {
	tokens := make([]int32, promptTokens)
	m := handoff.Manifest{ID: handoff.ID{Group: "p", Instance: 1, Leader: 1, N: 1}, Key: handoff.Key{1}, Label: "r", Tokens: promptTokens,
		Position: promptTokens, BlockTokens: 16, Resume: handoff.Resume{Tokens: []int32{1}}}
	d := dynamo.FromManifest(m)
	type body struct {
		dynamo.HandoffRequest
		Item *dynamo.ImportAnswer `json:"item,omitempty"` // that the worker gives back
	}
	q := dynamo.HandoffRequest{Op: "import", Label: "r", Manifest: &d, Tokens: tokens}
	item := &dynamo.ImportAnswer{Label: "r", ID: d.ID, Bytes: 1 << 20, Phases: map[string]int64{"open": 0, "reserve": 0, "move": 0, "check": 0, "done": 0, "admit": 0}}
	err := p.tell(struct {
		Do     string          `json:"do"`
		N      int             `json:"n"`
		AtOnce int             `json:"at_once"`
		Turns  int             `json:"turns"`
		Bodies map[string]body `json:"bodies"`
	}{what, n, atOnce, turns, map[string]body{batonCalls: {HandoffRequest: q}, pythonCalls: {q, item}}})
	if err != nil {
		return err
	}
	line, err := p.line(ctx)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(line), into)
}

// tell writes a line.
func (p *dynamoProcess) tell(q any) error {
	b, err := json.Marshal(q)
	if err == nil {
		_, err = p.in.Write(append(b, '\n'))
	}
	return err
}

// close ends the process.
func (p *dynamoProcess) close() error {
	err := p.in.Close()
	_ = p.cmd.Process.Kill() // it may have gone
	for range p.out {
	}
	_ = p.cmd.Wait() // what it says of the kill
	return err
}
