package dynamo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/child"
	"github.com/batonkv/baton/plugins/adapter/drive"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/plugins/plugintest"
	"github.com/batonkv/baton/plugins/route"
	"github.com/batonkv/baton/sidecar/handoff"
)

const (
	envChild = "DYNAMO_TEST_CHILD"
	envAlone = "DYNAMO_TEST_ALONE" // a section
	limit    = time.Minute         // of a test's waits: a fault, not a measure
)

// TestMain makes the test binary an adapter when a test starts it as one.
func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		child.Serve(&Adapter{Reshard: route.Layouts()})
	}
	if sec := os.Getenv(envAlone); sec != "" {
		if err := alone(sec); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

func ctxOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func section(folder string) []byte {
	return []byte("namespace: dynamo\ndiscovery: file\nfolder: " + folder)
}

// caller is a Dynamo client.
type caller struct {
	t      *testing.T
	client *plane.Client
	files  *directory.Files
}

func newCaller(t *testing.T, folder string) *caller {
	c, err := plane.NewClient("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	files, err := directory.OpenFiles(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &caller{t, c, files}
}

// targets are the instances of an endpoint.
func (c *caller) targets(ctx context.Context, endpoint string) (all []plane.Target) {
	for s, err := range c.files.Watch(ctx, directory.Instances+"dynamo/baton/"+endpoint+"/") {
		if err != nil {
			c.t.Fatal(err)
		}
		for _, r := range s {
			var i directory.Instance
			if err := json.Unmarshal(r.Value, &i); err != nil {
				c.t.Fatal(err)
			}
			codec, err := wire.ParseCodec(i.Codec)
			addr, path, ok := i.Called()
			if err != nil || !ok {
				c.t.Fatal(i, err)
			}
			all = append(all, plane.Target{Address: addr, Path: path, Codec: codec})
		}
		break
	}
	return all
}

// call asks the one instance that answers, and gives its first item.
func call[T any](ctx context.Context, c *caller, endpoint string, q any) (v T, err error) {
	err = errors.New("no instance")
	for _, to := range c.targets(ctx, endpoint) {
		var a *plane.Answer
		if a, err = c.client.Call(ctx, to, q); err != nil {
			continue
		}
		defer a.Close()
		return v, a.Next(ctx, &v)
	}
	return v, err
}

func subject(t *testing.T, open drive.Opener) plugintest.Subject {
	folder := t.TempDir()
	c := newCaller(t, folder)
	return plugintest.Subject{Open: open, Section: append(section(folder), "\nkv: {events: zmq}"...),
		Bad: [][]byte{nil, []byte("namespace: Dynamo\ndiscovery: file\nfolder: /x"), []byte("namespace: dynamo"), []byte("namespace: dynamo\ndiscovery: file\nfolder: x"),
			[]byte("namespace: dynamo\ndiscovery: mem"), append(section(folder), "\nlisten: localhost:0"...), append(section(folder), "\nlisten: 0.0.0.0:0"...),
			append(section(folder), "\ncalls: 0"...), append(section(folder), "\nwaiting: 0"...), append(section(folder), "\nrequests: 8"...), append(section(folder), "\ncodec: cbor"...), append(section(folder), "\ncall-home: [x]"...), append(section(folder), "\ntypo: 1"...)},
		Shows: func(t *testing.T) map[string]string {
			first, err := call[Notice](ctxOf(t), c, "handoff", HandoffRequest{Op: "watch"})
			if err != nil || first.Kind != "begin" {
				t.Errorf("%+v, %v", first, err)
			}
			lines := map[string]string{}
			for _, i := range first.Handoffs {
				id, err := i.ID.ID()
				if err != nil {
					t.Error(err)
				}
				lines[id.String()] = i.Phase
			}
			return lines
		},
		Blocks: func(t *testing.T) int {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			if got, err := call[StatusAnswer](ctx, c, "status", struct{}{}); err == nil && got.KV != nil {
				return got.KV.Blocks
			}
			return -1 // it is there soon
		}}
}

func TestBuiltIn(t *testing.T) {
	plugintest.Run(t, func(t *testing.T) plugintest.Subject {
		return subject(t, drive.BuiltIn(func() adapter.Adapter {
			return &Adapter{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Reshard: route.Layouts()}
		}))
	})
}

func TestChild(t *testing.T) {
	t.Setenv(envChild, "1")
	plugintest.Run(t, func(t *testing.T) plugintest.Subject {
		return subject(t, child.Open([]string{os.Args[0]}, "", slog.New(slog.NewTextHandler(t.Output(), nil))))
	})
}

// TestSectionFaults: a refusal names the field and says what is wanted.
func TestSectionFaults(t *testing.T) {
	for in, want := range map[string]string{
		"{}": "namespace", "namespace: dynamo": "etcd: etcd config: endpoints", "namespace: d\ndiscovery: mem": "want etcd or file",
		"namespace: d\ndiscovery: file\nfolder: /x\nlisten: host:1": "listen: ", "namespace: d\ndiscovery: file\nfolder: /x\nlisten: 0.0.0.0:1": "advertise: ",
		"namespace: d\ndiscovery: file\nfolder: /x\nrequest-plane: http": "want tcp or nats", "namespace: d\ndiscovery: file\nfolder: /x\nrequest-plane: nats": "want nats.urls",
		"namespace: d\nfolder: /x\netcd: {endpoints: ['http://a:1']}": "folder: ", "namespace: d\ndiscovery: file\nfolder: /x\nadvertise: a": "advertise: ",
	} {
		if _, err := ParseConfig([]byte(in)); !errors.Is(err, handoff.ErrSection) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
	c, err := ParseConfig([]byte("namespace: d\netcd: {endpoints: ['http://a:1'], ttl: 20s}\ncall-home: [10.0.0.0/8]\nlisten: 0.0.0.0:9\nadvertise: 10.0.0.1"))
	if err != nil || c.Etcd.TTL != 20*time.Second || len(c.homes) != 1 || c.advertise.String() != "10.0.0.1" || !slices.Equal(c.Etcd.Endpoints, []string{"http://a:1"}) {
		t.Errorf("%+v, %v", c, err)
	}
}
