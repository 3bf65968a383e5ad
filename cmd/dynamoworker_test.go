package cmd

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/plugins/adapter/dynamo/worker"
	"github.com/batonkv/baton/sidecar/handoff"
)

// TestAttend: a worker is offered while its engine is there; only changes are told.
func TestAttend(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	away := errors.New("away")
	looks := []error{nil, away, away, nil, nil, away}
	tick := make(chan time.Time, len(looks))
	for range looks {
		tick <- time.Time{}
	}
	var offers []bool
	var n int
	attend(ctx, tick, func(context.Context) error { n++; return looks[n-1] }, func(on bool) {
		if offers = append(offers, on); n == len(looks) {
			cancel()
		}
	})
	if !slices.Equal(offers, []bool{false, true, false}) {
		t.Error(offers)
	}
}

// TestEngineAway: a call of an engine that is not there can be tried elsewhere.
func TestEngineAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.sock")
	var e fronted
	if _, err := front.Dial(t.Context(), path); !errors.Is(refused(err), handoff.ErrNotReady) {
		t.Error(err)
	}
	e.c = &front.Client{}
	if _, _, err := e.Prefill(t.Context(), worker.Job{Label: "a", Tokens: []int32{1}, MaxNew: 2}); !errors.Is(err, handoff.ErrNotReady) {
		t.Error(err)
	}
}
