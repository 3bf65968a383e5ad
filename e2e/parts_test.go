package e2e

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// TestDemoParts: tokens are those of one engine when state leaves while its prompt is computed.
func TestDemoParts(t *testing.T) {
	for _, args := range []string{"", "--model=attention --inference-shards=tp=2,pp=2,role=prefill+tp=2,role=decode", "--disagg-kv-transport-backend=tcp"} {
		out, err := exec.CommandContext(bounded(t), binary, append([]string{"demo", "--export-parts", "--new=8"}, strings.Fields(args)...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "7 of 7 requests") || strings.Contains(string(out), "\n0 parts of prompts") {
			t.Errorf("demo %s: %v\n%s", args, err, out)
		}
	}
}

// TestLoadInParts: made-up requests that leave by chunks and by layers, ended in every way,
// with movers killed, are what their tokens say, and nothing stays held.
func TestLoadInParts(t *testing.T) {
	for _, backend := range []string{"shm", "tcp"} {
		out, err := exec.CommandContext(bounded(t), binary, "load", "--export-parts", "--requests=200", "--kill-movers=4", "--seed=8",
			"--disagg-kv-transport-backend="+backend).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "begun while their prompts were computed") || strings.Contains(string(out), ", 0 begun") {
			t.Errorf("load %s: %v\n%s", backend, err, out)
		}
	}
}

// partly is an import of a prompt that stands still while it is computed.
type partly struct {
	*half
	leave    context.CancelFunc // the prefill engine's caller does
	prefills chan error
}

// computing begins a prompt in parts and its import, and pauses the prefill engines when some
// of it was told.
func (w *world) computing(label string) *partly {
	w.t.Helper()
	ctx, leave := context.WithCancel(bounded(w.t))
	h := &partly{half: &half{prompt: prompt(1, 200*block), done: make(chan error, 1)}, leave: leave, prefills: make(chan error, 1)}
	go func() {
		_, err := generate(ctx, w.prefill, front.Request{Tokens: h.prompt, MaxNew: maxNew, Label: label, Mode: front.Export}, nil)
		h.prefills <- err
	}()
	for n, err := range w.prefill.Leader.Watch(bounded(w.t), control.Cursor{}) {
		if err != nil {
			w.t.Fatal(err)
		}
		if n.Kind == control.Announced && n.Label == label {
			h.man = *n.Manifest
			break
		}
	}
	imports := bounded(w.t)
	go func() {
		_, err := w.decode.Leader.Import(imports, handoff.Import{Label: label, Manifest: h.man, Tokens: h.prompt, Deadline: patience})
		h.done <- err
	}()
	eventually(w.t, "parts are told", func() bool { return w.counts(w.prefill)["Part"] > 1 })
	if err := w.prefill.Leader.Do(bounded(w.t), handoff.ActionPause); err != nil {
		w.t.Fatal(err)
	}
	select {
	case err := <-h.done:
		w.t.Fatalf("the import has ended before its prompt: %v", err)
	default:
	}
	return h
}

// TestPartsSourceDies: of a prompt whose source dies while it is computed nothing is decoded.
func TestPartsSourceDies(t *testing.T) {
	eachOfSource(t, func(t *testing.T, victim func(w *world) int) {
		w := up(t, "tp=2,dp=2,role=prefill+tp=1,role=decode", "hybrid", func(o *dev.Options) { o.Parts = true })
		h := w.computing("a")
		killed(t, victim(w))
		w.endsWithItsSource(h.half)
	})
}

// TestPartsGivenUp: of a prompt that the engine gives up while it is computed all parts are
// gone, on both sides, and the next one is handed over.
func TestPartsGivenUp(t *testing.T) {
	for _, backend := range []string{"shm", "tcp"} {
		t.Run(backend, func(t *testing.T) {
			w := up(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid", func(o *dev.Options) { o.Parts, o.Backend = true, backend })
			h := w.computing("a")
			h.leave()
			if err := w.prefill.Leader.Do(bounded(t), handoff.ActionUnpause); err != nil {
				t.Fatal(err)
			}
			h.ended(t, handoff.ErrGone)
			if err := <-h.prefills; err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the prefill ended with %v", err)
			}
			w.allFree(w.decode, poolBlocks, poolSlots)
			w.allFree(w.prefill, poolBlocks, poolSlots)
			w.handoff("the next", prompt(4, 40))
		})
	}
}
