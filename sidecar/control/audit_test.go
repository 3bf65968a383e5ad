package control_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/batonkv/baton/proto/codec"
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	controlv1 "github.com/batonkv/baton/proto/control/v1"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// heard collects what a server audits.
type heard struct {
	mu  sync.Mutex
	all []control.Audited
}

func (h *heard) hear(a control.Audited) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, a)
}

func (h *heard) take() []control.Audited {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer func() { h.all = nil }()
	return h.all
}

// every makes each call of the service once, and returns what each failed with.
func every(ctx context.Context, c control.Service) map[string]error {
	got := map[string]error{"Abort": c.Abort(ctx, id, handoff.Key{}), "Release": c.Release(ctx, id, handoff.Key{}),
		"SetWeightsEpoch": c.SetWeightsEpoch(ctx, 7), "Reset": c.Reset(ctx), "Lifecycle": c.Do(ctx, handoff.ActionPause)}
	_, got["Import"] = c.Import(ctx, handoff.Import{Label: "r1", Manifest: handoff.Manifest{ID: id}})
	_, got["Get"] = c.Get(ctx, id)
	_, got["Status"] = c.Status(ctx)
	_, got["List"] = c.List(ctx, control.Query{})
	_, got["Geometry"] = c.Geometry(ctx)
	_, got["Drain"] = c.Drain(ctx, true)
	_, got["Links"] = c.Links(ctx, control.LinksQuery{})
	for _, err := range c.Watch(ctx, control.Cursor{}) {
		got["Watch"] = err
		break
	}
	return got
}

func TestAudit(t *testing.T) {
	var h heard
	w, ctx := start(t, control.WithAudit(h.hear)), testCtx(t)
	w.Append(control.Notice{Kind: control.Ready}) // what the watch ends at
	want := map[string]control.Audited{"Import": {Label: "r1", ID: id}, "Get": {ID: id}, "Abort": {ID: id}, "Release": {ID: id},
		"SetWeightsEpoch": {Asked: "epoch 7"}, "Reset": {}, "Lifecycle": {Asked: "pause"}, "Drain": {Asked: "resume-intake"},
		"Status": {}, "List": {}, "Geometry": {}, "Links": {}, "Watch": {}}
	if n := len(controlv1.Control_ServiceDesc.Methods) + len(controlv1.Control_ServiceDesc.Streams); n != len(want) {
		t.Fatalf("%d calls, %d are tried", n, len(want))
	}
	for _, k := range []struct {
		uri  string
		says error // of the service
		is   error
	}{{"baton://control/dev", nil, nil}, {"baton://admin/me", handoff.ErrQuiet, handoff.ErrQuiet}, {"baton://c/t/g/0", nil, handoff.ErrDenied}} {
		w.err = k.says
		every(ctx, w.dial(t, k.uri))
		got := h.take()
		if len(got) != len(want) {
			t.Fatalf("%s: %d of %d calls: %+v", k.uri, len(got), len(want), got)
		}
		for _, a := range got {
			is := k.is
			if a.Call == "Watch" && k.says != nil {
				is = nil // it is told at its start
			}
			if !errors.Is(a.Err, is) || a.Elapsed < 0 || a.Call != "Watch" && a.Elapsed == 0 {
				t.Errorf("%s by %s: %v after %v", a.Call, a.By, a.Err, a.Elapsed)
			}
			expected := want[a.Call]
			expected.Call, expected.By = a.Call, k.uri
			a.Err, a.Elapsed = nil, 0
			if !reflect.DeepEqual(a, expected) {
				t.Errorf("%+v, want %+v", a, expected)
			}
		}
	}
}

// A call whose caller has gone is told when it ends here, and what is malformed is told
// within bounds.
func TestAuditOfBrokenCalls(t *testing.T) {
	heard := make(chan control.Audited, 1)
	svc := stuck{began: make(chan struct{}, 1)}
	w := serving(t, svc, control.WithAudit(func(a control.Audited) { heard <- a }))
	ctx, cancel := context.WithCancel(testCtx(t))
	gone := make(chan error, 1)
	go func() {
		_, err := w.dial(t, "baton://control/dev").Import(ctx, handoff.Import{Label: "r1"})
		gone <- err
	}()
	<-svc.began
	cancel()
	if a := <-heard; a.Call != "Import" || a.Label != "r1" || a.Err == nil || a.Elapsed <= 0 {
		t.Errorf("%+v", a)
	}
	<-gone
	_, config := w.ca.Configs(t, "baton://c/t/g/0")
	conn, err := grpc.NewClient("passthrough:///"+w.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := controlv1.NewControlClient(conn).Import(ctx, &controlv1.ImportRequest{
		ImportRequest: &commonv1.Import{Label: strings.Repeat("é", codec.MaxString)}}); err == nil {
		t.Error("a stranger imports")
	}
	if a := <-heard; !errors.Is(a.Err, handoff.ErrDenied) || len(a.Label) != codec.MaxString || a.ID != (handoff.ID{}) {
		t.Errorf("%d bytes of label, %v, %v", len(a.Label), a.ID, a.Err)
	}
}
