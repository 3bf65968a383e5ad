package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/bench/measure"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/tcp"
)

// hopChunk is small: its bytes cost nothing beside the way to them.
const hopChunk = 4 << 10

// moverHop measures what a wire mover adds to a submit, an offer or a fetch: wires over
// loopback in this process, and the same in processes of their own, in turn.
func moverHop(ctx context.Context, o Options) (r Result, err error) {
	r = Result{Name: "staging/mover-hop", Unit: "us", BaseUnit: "us",
		What: "what a wire mover in a process of its own adds to a submit: half of what it adds to an offer and its fetch, 4 KiB over plain TCP"}
	var inner, outer [2]staged.Wire
	for i := range 2 {
		fd, arena, err := measure.Memory(hopChunk)
		if err != nil {
			return r, err
		}
		defer func() { _ = errors.Join(unix.Munmap(arena), unix.Close(fd)) }()
		in, err := tcp.New(tcp.Config{Wire: 1, Arena: arena, Chunk: hopChunk, Listen: "127.0.0.1:0"})
		if err != nil {
			return r, err
		}
		defer in.Close()
		out, err := startWire(ctx, o, json.RawMessage(`{"Plain":true}`), mover.Setup{Transport: "tcp-plain", Wire: 1, Group: "bench", Chunk: hopChunk},
			transfer.Memory{Kind: transfer.Memfd, FD: fd, Len: hopChunk})
		if err != nil {
			return r, err
		}
		defer out.Close()
		inner[i], outer[i] = in, out
	}
	var in, out []float64
	for n := range 50 + 20*o.Rounds {
		a, err := offerAndFetch(inner, uint64(n))
		if err != nil {
			return r, err
		}
		b, err := offerAndFetch(outer, uint64(n))
		if err != nil {
			return r, err
		}
		if n >= 50 { // connections, caches, schedulers
			in, out = append(in, a), append(out, b)
		}
	}
	for _, us := range out {
		r.Samples = append(r.Samples, (us-Median(in))/2)
	}
	r.Baseline = in
	return AtMost(r, 50), ctx.Err()
}

// startWire starts a wire mover of this program.
func startWire(ctx context.Context, o Options, options json.RawMessage, s mover.Setup, arena transfer.Memory) (*mover.Wire, error) {
	s.Bytes, s.Listen, s.Options = arena.Len, "127.0.0.1:0", options
	return mover.StartWire(ctx, mover.WireConfig{Command: []string{o.Binary, "mover", "wire"}, Stderr: os.Stderr, Setup: s, Arena: arena, StartTimeout: time.Minute})
}

// offerAndFetch is how long both take, one after the other, in microseconds.
func offerAndFetch(w [2]staged.Wire, offer uint64) (float64, error) {
	began := time.Now()
	if err := w[0].Offer(staged.Exposed{Offer: offer, Bytes: hopChunk}); err != nil {
		return 0, err
	}
	if err := fetched(w, offer, hopChunk); err != nil {
		return 0, err
	}
	us := float64(time.Since(began).Nanoseconds()) / 1e3
	w[0].Withdraw(offer)
	return us, nil
}

// fetched fetches what was offered and waits.
func fetched(w [2]staged.Wire, offer uint64, bytes int64) error {
	done := make(chan error, 1)
	w[1].Fetch(staged.Fetching{Addr: w[0].Addr(), Of: 1, Offer: offer, Bytes: bytes}, func(err error) { done <- err })
	if err := <-done; err != nil {
		return fmt.Errorf("fetch %d: %w", offer, err)
	}
	return nil
}
