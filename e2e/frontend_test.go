package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/sidecar/events"
)

// tokenizer is the folder with which a frontend makes tokens for the seeded models.
const tokenizer = "../examples/engine/tokenizer"

// twoToOne are groups of unequal layout.
const twoToOne = "tp=2,role=prefill+tp=1,role=decode"

// fronted is a deployment behind Dynamo's own HTTP frontend.
type fronted struct {
	*deployment
	url string
}

// dynamoPython is a Python with Dynamo's frontend.
func dynamoPython(t *testing.T) string {
	python := os.Getenv("BATON_DYNAMO")
	if python == "" {
		need.Skip(t, "dynamo", "BATON_DYNAMO names no Python with ai-dynamo")
	}
	if err := exec.Command(python, "-c", "import dynamo.frontend").Run(); err != nil {
		need.Skip(t, "dynamo", "%s has no frontend of Dynamo, as .ci/run dynamo installs: %v", python, err)
	}
	return python
}

// frontend starts python -m dynamo.frontend for a deployment, in a mode of its router.
func frontend(t *testing.T, mode, shards string, change ...func(*dev.Options)) *fronted {
	python := dynamoPython(t)
	return deploy(t, shards, "hybrid", change...).front(python, mode)
}

// front starts a frontend, which ends with the test; env is beside that of a deployment without servers.
func (d *deployment) front(python, mode string, env ...string) *fronted {
	t, f := d.t, &fronted{deployment: d}
	addr := freeAddr(t)
	f.url = "http://" + addr + "/v1/"
	host, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(python, "-m", "dynamo.frontend", "--http-host", host, "--http-port", port, "--router-mode", mode)
	cmd.Env = append(os.Environ(), "DYN_DISCOVERY_BACKEND=file", "DYN_FILE_KV="+f.folder, "DYN_REQUEST_PLANE=tcp", "DYN_EVENT_PLANE=zmq",
		"DYN_LOG=error", "DYN_TCP_RPC_HOST=127.0.0.1", "HF_HUB_OFFLINE=1", "HOME="+t.TempDir())
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr, cmd.Stdout = f.log, f.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGKILL) // it may have gone
		<-ended
	})
	eventually(t, "the frontend serves the model", func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the frontend ended: %v", err)
		default:
		}
		resp, err := http.Get(f.url + "models")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return err == nil && strings.Contains(string(b), `"id":"tiny"`)
	})
	// It serves before its routers know all workers.
	eventually(t, "the frontend knows all workers", func() bool {
		status, _ := f.answer("completions", ask{Prompt: "warm", Max: 2})
		return status == http.StatusOK && slices.Min(f.handoffs()) > 0
	})
	return f
}

// models are those that it lists.
func (f *fronted) models() (names []string) {
	f.t.Helper()
	resp, err := http.Get(f.url + "models")
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	var all struct{ Data []struct{ ID string } }
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		f.t.Fatal(err)
	}
	for _, m := range all.Data {
		names = append(names, m.ID)
	}
	return names
}

// freeAddr is an address of this host that nobody listens on. Its port is below those that the
// kernel gives to whoever asks for any: nobody gets it until its user listens.
func freeAddr(t *testing.T) string {
	const from, to = 20_000, 32_000
	var err error
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", from+rand.IntN(to-from))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatal(err)
	return ""
}

// ask is a request of the OpenAI API.
type ask struct {
	Model    string   `json:"model"`
	Prompt   string   `json:"prompt,omitempty"`
	Messages []said   `json:"messages,omitempty"`
	Max      int      `json:"max_tokens"`
	Temp     float64  `json:"temperature"`
	Stream   bool     `json:"stream,omitempty"`
	Stop     []string `json:"stop,omitempty"`
	Logprobs any      `json:"logprobs,omitempty"` // a number of completions, true of chats
	AsIDs    bool     `json:"return_tokens_as_token_ids,omitempty"`
	N        int      `json:"n,omitempty"`
	Ignore   bool     `json:"ignore_eos,omitempty"`
	Min      int      `json:"min_tokens,omitempty"`
	Ext      *asking  `json:"nvext,omitempty"`
}

// asking is what of an answer Dynamo adds to the API.
type asking struct {
	Fields []string `json:"extra_fields"`
}

type said struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// told is an answer, or a part of one.
type told struct {
	Choices []struct {
		Text     string `json:"text"`
		Finish   string `json:"finish_reason"`
		Logprobs *struct {
			Tokens  []string `json:"tokens"`
			Content []struct {
				ID int32 `json:"token_id"`
			} `json:"content"`
		} `json:"logprobs"`
		Message said `json:"message"`
	} `json:"choices"`
	Usage struct {
		Prompt int `json:"prompt_tokens"`
	} `json:"usage"`
}

// tokens are those of an answer that was asked for their logprobs, and why it ended.
func (a told) tokens() (ids []int32, finish string, err error) {
	for _, c := range a.Choices {
		finish = cmp.Or(c.Finish, finish)
		if c.Logprobs == nil {
			continue
		}
		for _, t := range c.Logprobs.Tokens {
			id, err := strconv.ParseInt(strings.TrimPrefix(t, "token_id:"), 10, 32)
			if err != nil {
				return nil, "", err
			}
			ids = append(ids, int32(id))
		}
		for _, t := range c.Logprobs.Content {
			ids = append(ids, t.ID)
		}
	}
	return ids, finish, nil
}

// post sends a request.
func (f *fronted) post(ctx context.Context, path string, q ask) (*http.Response, error) {
	q.Model = "tiny"
	b, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err == nil {
		f.t.Cleanup(func() { resp.Body.Close() })
	}
	return resp, err
}

// answer sends a request and reads what comes.
func (f *fronted) answer(path string, q ask) (status int, body string) {
	f.t.Helper()
	resp, err := f.post(bounded(f.t), path, q)
	if err != nil {
		f.t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// complete asks for an answer and returns its tokens and why it ended.
func (f *fronted) complete(path string, q ask) (tokens []int32, finish string) {
	f.t.Helper()
	status, body := f.answer(path, q)
	if status != http.StatusOK {
		f.t.Fatalf("%s: %d\n%s", path, status, body)
	}
	parts := []string{body}
	if q.Stream {
		parts = nil
		for line := range strings.Lines(body) {
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok && text != "[DONE]" {
				parts = append(parts, text)
			}
		}
	}
	for _, part := range parts {
		var a told
		if err := json.Unmarshal([]byte(part), &a); err != nil {
			f.t.Fatalf("%s: %v", part, err)
		}
		more, end, err := a.tokens()
		if err != nil {
			f.t.Fatalf("%s: %v", part, err)
		}
		tokens, finish = append(tokens, more...), cmp.Or(end, finish)
	}
	return tokens, finish
}

// text is a prompt of n bytes that shares its beginning with no other.
func text(seed, n int) string {
	return fmt.Sprintf("%d: %s", seed, strings.Repeat("the baton goes on. ", n/19+1))[:n]
}

// TestFrontend: what users of Dynamo's HTTP frontend get is what one engine generates, and it
// came by hand-offs.
func TestFrontend(t *testing.T) {
	for _, mode := range []string{"round-robin", "kv"} {
		t.Run(mode, func(t *testing.T) {
			f := frontend(t, mode, twoToOne)
			before, n := f.handoffs(), 0
			for _, stream := range []bool{false, true} {
				prompt := text(n, 50+20*n)
				got, finish := f.complete("completions", ask{Prompt: prompt, Max: maxNew, Stream: stream, Logprobs: 1, AsIDs: true})
				if want := f.whole(model.Encode(prompt)); !slices.Equal(got, want) || finish == "" {
					t.Errorf("completion, stream %v: %v %s, want %v", stream, got, finish, want)
				}
				prompt = text(n+1, 40)
				got, finish = f.complete("chat/completions", ask{Messages: []said{{"user", prompt}}, Max: maxNew, Stream: stream, Logprobs: true})
				if want := f.whole(model.Encode("user: " + prompt + "\nassistant: ")); !slices.Equal(got, want) || finish == "" {
					t.Errorf("chat, stream %v: %v %s, want %v", stream, got, finish, want)
				}
				n += 2
			}
			f.ended()
			if all := f.models(); !slices.Equal(all, []string{"tiny"}) { // the adapters' cards are no models
				t.Errorf("models %v", all)
			}
			if after := f.handoffs(); after[0]-before[0] != n || after[1]-before[1] != n {
				t.Errorf("%d requests: the workers' hand-offs went from %v to %v", n, before, after)
			}
		})
	}
}

// TestFrontendReleases: whatever becomes of a request, its hand-off is released once.
func TestFrontendReleases(t *testing.T) {
	f := frontend(t, "kv", twoToOne)
	f.ended()
	ch := f.events(f.prefill)
	prompt := text(1, 60)
	whole := f.whole(model.Encode(prompt))

	// Prefill refuses, then decode.
	f.refused(http.StatusBadRequest, "one answer", ask{Prompt: prompt, Max: maxNew, N: 2, Temp: 1})
	f.refused(http.StatusBadRequest, "max_tokens", ask{Prompt: prompt, Max: 1<<12 + 1})

	// A stop word ends the answer before decode does.
	at := slices.IndexFunc(whole[2:], func(t int32) bool { return t > ' ' && t < 127 }) + 2
	if at < 2 {
		t.Fatalf("no letter in %v", whole)
	}
	got, finish := f.complete("completions", ask{Prompt: prompt, Max: maxNew, Stop: []string{string(rune(whole[at]))}, Logprobs: 1, AsIDs: true})
	if end := slices.Index(whole, whole[at]) + 1; finish != "stop" || !slices.Equal(got, whole[:end]) {
		t.Errorf("until a stop word: %v %s, want %v", got, finish, whole[:end])
	}
	if got, finish := f.complete("completions", ask{Prompt: prompt, Max: 40, Min: 40, Ignore: true, Logprobs: 1, AsIDs: true}); len(got) != 40 || finish != "length" {
		t.Errorf("at least 40 tokens: %d, %s", len(got), finish)
	}

	// The caller goes while it is told, then before decode begins.
	ctx, cancel := context.WithCancel(bounded(t))
	resp, err := f.post(ctx, "completions", ask{Prompt: prompt, Max: 1 << 10, Stream: true, Ignore: true})
	if err == nil {
		_, err = resp.Body.Read(make([]byte, 1))
	}
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	ctx, cancel = context.WithCancel(bounded(t))
	exported, done := f.events(f.prefill), make(chan struct{})
	go func() {
		defer close(done)
		for e := range exported {
			if e.Kind == events.Exported {
				cancel()
				return
			}
		}
	}()
	if resp, err := f.post(ctx, "completions", ask{Prompt: prompt, Max: 1 << 10, Ignore: true}); err == nil {
		t.Errorf("answered: %s", resp.Status)
	}
	<-done

	f.ended()
	f.releasedOnce(ch, false)
}

// handoffs are how many each worker had.
func (f *fronted) handoffs() (n []int) {
	f.t.Helper()
	for _, w := range f.workers {
		n = append(n, int(scrape(f.t, w.status, "baton_dynamo_worker_handoffs_total")))
	}
	return n
}

// refused wants an error that says why.
func (f *fronted) refused(status int, why string, q ask) {
	f.t.Helper()
	if got, body := f.answer("completions", q); got != status || !strings.Contains(body, why) {
		f.t.Errorf("%d %s, want %d and %q", got, body, status, why)
	}
}

// releasedOnce holds what rank 0 of a source told of its hand-offs against one release each; left:
// their lease may have done it.
func (f *fronted) releasedOnce(ch <-chan events.Event, left bool) {
	f.t.Helper()
	exported, released, expired := map[string]int{}, map[string]int{}, 0
	eventually(f.t, "each hand-off is released", func() bool {
		for len(ch) > 0 {
			switch e := <-ch; {
			case e.Rank != 0:
			case e.Kind == events.Exported:
				exported[e.Handoff]++
			case e.Kind == events.Released:
				released[e.Handoff]++
			case e.Kind == events.Expired:
				expired++
			}
		}
		return len(exported) > 0 && len(released) >= len(exported)
	})
	for id := range exported {
		if released[id] != 1 || exported[id] != 1 {
			f.t.Errorf("%s was exported %d times, released %d", id, exported[id], released[id])
		}
	}
	if f.t.Logf("%d hand-offs, %d ended by their lease", len(exported), expired); expired > 0 && !left {
		f.t.Error("hand-offs were left to their lease")
	}
}
