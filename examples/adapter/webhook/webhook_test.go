package webhook

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/child"
	"github.com/batonkv/baton/plugins/adapter/drive"
	"github.com/batonkv/baton/plugins/plugintest"
)

const envChild = "WEBHOOK_TEST_CHILD"

// TestMain makes the test binary the adapter when a test starts it as one.
func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		child.Serve(&Adapter{})
	}
	os.Exit(m.Run())
}

// receiver is what a URL leads to: it keeps the last event.
type receiver struct {
	t    *testing.T
	mu   sync.Mutex // guards:
	last Event
	kind []string
}

func (r *receiver) ServeHTTP(_ http.ResponseWriter, q *http.Request) {
	var e Event
	if err := json.NewDecoder(q.Body).Decode(&e); err != nil {
		r.t.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.kind = e, append(r.kind, e.Kind)
}

func subject(t *testing.T, open drive.Opener) plugintest.Subject {
	r := &receiver{t: t}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "state.json")
	return plugintest.Subject{Open: open, Section: fmt.Appendf(nil, "file: %s\nurl: %s", file, s.URL),
		Bad: [][]byte{nil, []byte("file: here"), []byte("fiel: /x"), []byte("[]"), []byte("{"), []byte("file: /x\nurl: mailto:x"), []byte("file: /x\nurl: http://")},
		Shows: func(t *testing.T) map[string]string {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var e Event
			if err := json.Unmarshal(b, &e); err != nil {
				t.Fatal(err)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if !reflect.DeepEqual(r.last, e) {
				t.Errorf("the URL got %+v, the file has %+v", r.last, e)
			}
			return e.Handoffs
		}}
}

func TestBuiltIn(t *testing.T) {
	plugintest.Run(t, func(t *testing.T) plugintest.Subject {
		return subject(t, drive.BuiltIn(func() adapter.Adapter { return &Adapter{} }))
	})
}

func TestChild(t *testing.T) {
	t.Setenv(envChild, "1")
	plugintest.Run(t, func(t *testing.T) plugintest.Subject {
		return subject(t, child.Open([]string{os.Args[0]}, "", slog.New(slog.NewTextHandler(t.Output(), nil))))
	})
}

// TestAURLThatFails ends the life: what was not taken is told again, by another one.
func TestAURLThatFails(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	a := &Adapter{}
	file := filepath.Join(t.TempDir(), "state.json")
	if err := a.Configure(t.Context(), fmt.Appendf(nil, "{file: %s, url: %s}", file, s.URL)); err != nil {
		t.Fatal(err)
	}
	if err := a.Sync(t.Context(), adapter.State{}); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("%v", err)
	}
	s.Close()
	if err := a.Drain(t.Context()); err == nil {
		t.Error("nobody listens")
	}
}

// TestAPage keeps the sample short.
func TestAPage(t *testing.T) {
	b, err := os.ReadFile("webhook.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"); n > 120 {
		t.Errorf("%d lines, want at most 120", n)
	}
}
