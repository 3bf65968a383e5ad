package host_test

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/host"
	"github.com/batonkv/baton/plugins/serve"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// The test binary is its own plugin: started by a host, it serves fake.
func TestMain(m *testing.M) {
	if os.Getenv(asHost) != "" {
		os.Exit(beHost())
	}
	if !serve.Launched() {
		os.Exit(m.Run())
	}
	if os.Getenv(breaks) != "" {
		fmt.Fprintln(os.Stderr, "this plugin does not start")
		os.Exit(3)
	}
	log := serve.NewLog(os.Stderr, slog.LevelDebug)
	fmt.Fprintln(os.Stderr, "written to standard error")
	if err := serve.Run(context.Background(), serve.Config{Handoff: fakeHandoff{}, Reshard: fakeReshard{}, Cluster: fakeCluster{}, Log: log}); err != nil {
		log.Error("plugin", "err", err)
		os.Exit(1)
	}
}

// asked reads what a test wants from the name of a group: wait, exit, or err-N, the error
// of that number.
func asked(ctx context.Context, group string) error {
	switch {
	case group == "wait":
		<-ctx.Done()
		return ctx.Err()
	case group == "exit":
		os.Exit(9)
	case strings.HasPrefix(group, "err-"):
		n, _ := strconv.Atoi(group[len("err-"):])
		return fmt.Errorf("%s: why: %w", group, errs.Sentinels()[n])
	}
	return nil
}

type fakeHandoff struct{ plugins.Handoff }

func (fakeHandoff) Import(ctx context.Context, group string, m handoff.Import) (handoff.Imported, error) {
	return handoff.Imported{Label: m.Label, ID: m.Manifest.ID, Bytes: int64(os.Getpid())}, asked(ctx, group)
}
func (fakeHandoff) Get(ctx context.Context, group string, id handoff.ID) (control.Info, error) {
	return control.Info{ID: id, Role: control.Source, Phase: control.Held, Err: handoff.ErrGone}, asked(ctx, group)
}
func (fakeHandoff) List(ctx context.Context, group string, q control.Query) (control.Page, error) {
	return control.Page{Infos: []control.Info{{Role: q.Role, Phase: control.Held}}, Next: q.Page + "+"}, asked(ctx, group)
}
func (fakeHandoff) Abort(ctx context.Context, group string, _ handoff.ID) error {
	return asked(ctx, group)
}
func (fakeHandoff) Release(ctx context.Context, id handoff.ID, _ handoff.Key) error {
	return asked(ctx, id.Group)
}

// Watch counts on from the cursor: notice n of process 5 has the number n. The group
// "dies" ends its plugin after every third.
func (fakeHandoff) Watch(ctx context.Context, group string, from control.Cursor) iter.Seq2[control.Notice, error] {
	return func(yield func(control.Notice, error) bool) {
		if err := asked(ctx, group); err != nil {
			yield(control.Notice{}, err)
			return
		}
		for n := max(from.Seq, 1); ; n++ {
			if !yield(control.Notice{Incarnation: 5, Seq: n, Kind: control.Ready}, nil) {
				return
			}
			if group == "dies" && n%3 == 0 {
				<-ctx.Done() // the test ends it
			}
		}
	}
}

type fakeReshard struct{ plugins.Reshard }

func (fakeReshard) Plan(ctx context.Context, q plugins.PlanQuery) (plugins.Plan, error) {
	return plugins.Plan{Digest: [32]byte{9}}, asked(ctx, q.Source.Group)
}
func (fakeReshard) Explain(ctx context.Context, q plugins.PlanQuery, tokens int32, f plugins.Format) ([]byte, error) {
	return []byte(fmt.Sprint(q.Destination.Layout, tokens, f)), asked(ctx, q.Source.Group)
}

type fakeCluster struct{ plugins.Cluster }

func (fakeCluster) Groups(context.Context) ([]plugins.Group, error) {
	return []plugins.Group{{Cluster: "c", Name: "g"}}, nil
}
func (fakeCluster) Watch(ctx context.Context) iter.Seq2[[]plugins.Group, error] {
	return func(yield func([]plugins.Group, error) bool) {
		if yield([]plugins.Group{{Name: "g", Size: int32(os.Getpid() % 1000)}}, nil) {
			<-ctx.Done()
			yield(nil, ctx.Err())
		}
	}
}
func (fakeCluster) Describe(ctx context.Context, group string) (plugins.Detail, error) {
	return plugins.Detail{Status: control.Status{Ready: true}}, asked(ctx, group)
}
func (fakeCluster) Links(ctx context.Context, group string, rank layout.Rank, q control.LinksQuery) (control.Links, error) {
	l := control.Links{Self: handoff.Member{Group: group, Rank: rank, Incarnation: 1}}
	if q.Meet && !q.Probe {
		l.More = 3
	}
	return l, asked(ctx, group)
}
func (fakeCluster) Do(ctx context.Context, group string, _ handoff.Action) error {
	return asked(ctx, group)
}
func (fakeCluster) SetWeightsEpoch(ctx context.Context, group string, _ uint64) error {
	return asked(ctx, group)
}
func (fakeCluster) Drain(ctx context.Context, group string, resume bool) (control.Drain, error) {
	return control.Drain{Draining: !resume, Waits: []string{"w"}}, asked(ctx, group)
}
func (fakeCluster) Reset(ctx context.Context, group string) error { return asked(ctx, group) }

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, change ...func(*host.Config)) *host.Host {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := host.Config{Command: []string{exe}, Backoff: time.Millisecond}
	for _, f := range change {
		f(&c)
	}
	h, err := host.Open(bounded(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}
