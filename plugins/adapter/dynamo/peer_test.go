package dynamo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/batonkv/baton/internal/need"
)

// EnvPython names a Python that has ai-dynamo-runtime, as testdata/requirements.txt pins it.
const envPython = "BATON_DYNAMO"

// peer is a Python process with the published wheel: client, worker, router.
type peer struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{}
	// version of the wheel. Those before 1.6 know fewer kinds of errors.
	version string

	mu    sync.Mutex // guards:
	n     int
	waits map[int]chan answer
}

type answer struct {
	N     int             `json:"n"`
	Is    json.RawMessage `json:"is"`
	Error string          `json:"error"`
}

// newPeer starts one; env says which discovery.
func newPeer(t *testing.T, env ...string) *peer {
	python := os.Getenv(envPython)
	if python == "" {
		need.Skip(t, "dynamo", "%s names no Python with ai-dynamo-runtime (testdata/requirements.txt)", envPython)
	}
	p := &peer{t: t, cmd: exec.Command(python, "testdata/peer.py"), done: make(chan struct{}), waits: map[int]chan answer{}}
	p.cmd.Env = append(os.Environ(), append(env, "DYN_LOG=error", "DYN_TCP_RPC_HOST=127.0.0.1")...)
	p.cmd.Stderr = quiet{t.Output()}
	in, err := p.cmd.StdinPipe()
	out, err2 := p.cmd.StdoutPipe()
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	p.in = in
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	go p.read(out)
	ctx := ctxOf(t)
	if p.must(ctx, words{"do": "version"}, &p.version); !slices.Contains([]string{"1.6.1", "1.5.1", "1.4.2"}, p.version) {
		t.Logf("ai-dynamo-runtime %s: what follows was tried with 1.6.1, 1.5.1 and 1.4.2", p.version)
	}
	return p
}

// quiet leaves out the line that Dynamo writes for each call.
type quiet struct{ to io.Writer }

func (q quiet) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("request_span")) {
		return len(b), nil
	}
	return q.to.Write(b)
}

// kill ends the process at once, as SIGKILL does.
func (p *peer) kill() {
	_ = p.cmd.Process.Kill() // it may have gone
	<-p.done
	_ = p.cmd.Wait()
}

func (p *peer) read(out io.Reader) {
	defer close(p.done)
	s := bufio.NewScanner(out)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		line, ok := strings.CutPrefix(s.Text(), "=> ")
		var a answer
		if !ok || json.Unmarshal([]byte(line), &a) != nil {
			continue
		}
		p.mu.Lock()
		if ch := p.waits[a.N]; ch != nil {
			ch <- a
			delete(p.waits, a.N)
		}
		p.mu.Unlock()
	}
}

// words is what a peer is asked.
type words map[string]any

// ask asks, and waits for the answer.
func (p *peer) ask(ctx context.Context, q words, into any) error {
	p.mu.Lock()
	p.n++
	q["n_"] = p.n
	ch := make(chan answer, 1)
	p.waits[p.n] = ch
	b, err := json.Marshal(q)
	if err == nil {
		_, err = p.in.Write(append(b, '\n'))
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case a := <-ch:
		if a.Error != "" {
			return errors.New(a.Error)
		}
		if into == nil {
			return nil
		}
		return json.Unmarshal(a.Is, into)
	case <-p.done:
		return errors.New("the peer has ended")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// must is ask, of what has to succeed.
func (p *peer) must(ctx context.Context, q words, into any) {
	p.t.Helper()
	if err := p.ask(ctx, q, into); err != nil {
		p.t.Fatalf("%v: %v", q["do"], err)
	}
}

// old says that the wheel is of a minor before 1.6.
func (p *peer) old() bool { return p.version < "1.6" }
