package directory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Waits of a Keeper.
const (
	firstPause = 200 * time.Millisecond // after a failure; it doubles
	longPause  = 5 * time.Second
	within     = 5 * time.Second // for a backend to answer
)

// Keeper keeps a set of records in place until Close. Records are put in the order of the
// set and removed in the reverse one.
type Keeper struct {
	backend Backend
	log     *slog.Logger
	look    time.Duration   // between two looks at records that nobody else should touch
	wake    chan struct{}   // holds one token when something is to be done
	ctx     context.Context // ends at Close
	stop    context.CancelFunc
	done    chan struct{}

	mu     sync.Mutex // guards:
	want   []Record
	set    uint64        // counts changes of want
	placed uint64        // the set that is in place
	change chan struct{} // closes when placed or err changes
	err    error         // of the last try
}

// Keep starts a Keeper. It looks after its records every so often, even when nothing tells
// that they are gone. The backend is closed by its owner, after Close.
func Keep(b Backend, look time.Duration, log *slog.Logger) *Keeper {
	k := &Keeper{backend: b, log: log, look: look, wake: make(chan struct{}, 1), done: make(chan struct{}), change: make(chan struct{})}
	k.ctx, k.stop = context.WithCancel(context.Background())
	go k.run()
	return k
}

// Set replaces the set. It waits for nothing.
func (k *Keeper) Set(want []Record) {
	k.mu.Lock()
	k.want = slices.Clone(want)
	k.set++
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Settled returns when what was set last is in place, or when ctx ends, with why not.
func (k *Keeper) Settled(ctx context.Context) error {
	k.mu.Lock()
	set := k.set
	for {
		placed, change, err := k.placed, k.change, k.err
		k.mu.Unlock()
		if placed >= set {
			return nil
		}
		select {
		case <-change:
		case <-k.done:
			return errors.Join(ErrDown, err)
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
		k.mu.Lock()
	}
}

// InPlace says why what was set last is not known to be in place at this moment, nil if it is:
// records that were placed once may be gone while the backend is away.
func (k *Keeper) InPlace() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil && k.placed < k.set {
		return fmt.Errorf("%w: not asked yet", ErrDown)
	}
	return k.err
}

// Close removes the records, as far as the backend answers before ctx ends; what is left
// ends with its lease.
func (k *Keeper) Close(ctx context.Context) {
	k.stop()
	select {
	case <-k.done:
	case <-ctx.Done():
	}
}

// run owns the lease.
func (k *Keeper) run() {
	defer close(k.done)
	var lease Lease
	var held []Record // in the order of their puts
	pause := firstPause
	for {
		err := k.place(&lease, &held)
		wait := k.look
		if err != nil {
			wait, pause = pause, min(2*pause, longPause)
		} else {
			pause = firstPause
		}
		var lost <-chan struct{}
		if lease != nil {
			lost = lease.Lost()
		}
		timer := time.NewTimer(wait)
		select {
		case <-lost:
			k.log.Warn("a lease of Dynamo's directory is lost; its records are put again", "records", len(held))
			k.mu.Lock()
			k.err = fmt.Errorf("%w: the lease is lost", ErrDown)
			k.mu.Unlock()
			k.drop(lease)
			lease, held = nil, nil
		case <-timer.C:
		case <-k.wake:
		case <-k.ctx.Done():
			timer.Stop()
			if lease != nil {
				k.remove(lease, held)
			}
			return
		}
		timer.Stop()
	}
}

// place brings the set into place.
func (k *Keeper) place(lease *Lease, held *[]Record) error {
	k.mu.Lock()
	want, set := k.want, k.set
	k.mu.Unlock()
	err := k.bring(lease, held, want)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil && k.ctx.Err() == nil && (k.err == nil || k.err.Error() != err.Error()) {
		k.log.Warn("Dynamo's directory does not have the records", "err", err)
	}
	if err == nil && k.err != nil {
		k.log.Info("Dynamo's directory has the records", "records", len(want))
	}
	k.err = err
	if err == nil {
		k.placed = set
	}
	close(k.change)
	k.change = make(chan struct{})
	return err
}

func (k *Keeper) bring(lease *Lease, held *[]Record, want []Record) error {
	ctx, cancel := context.WithTimeout(k.ctx, within)
	defer cancel()
	if *lease == nil {
		if len(want) == 0 {
			return nil
		}
		l, err := k.backend.Lease(ctx)
		if err != nil {
			return err
		}
		*lease = l
	}
	for n, r := range slices.Backward(*held) {
		if i := slices.IndexFunc(want, func(w Record) bool { return w.Key == r.Key }); i >= 0 && bytes.Equal(want[i].Value, r.Value) {
			continue
		}
		if err := (*lease).Delete(ctx, r.Key); err != nil {
			return err
		}
		*held = slices.Delete(*held, n, n+1)
	}
	for _, r := range want {
		if err := (*lease).Put(ctx, r); err != nil {
			return err
		}
		if !slices.ContainsFunc(*held, func(h Record) bool { return h.Key == r.Key }) {
			*held = append(*held, r)
		}
	}
	return nil
}

// remove ends a lease in order.
func (k *Keeper) remove(lease Lease, held []Record) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var err error
	for _, r := range slices.Backward(held) {
		if err = lease.Delete(ctx, r.Key); err != nil {
			break
		}
	}
	if err = errors.Join(err, lease.End(ctx)); err != nil {
		k.log.Warn("Dynamo's directory keeps the records until their lease ends", "err", err)
	}
}

// drop ends a lease that is lost; whether that is heard does not matter.
func (k *Keeper) drop(lease Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := lease.End(ctx); err != nil {
		k.log.Debug("a lost lease did not end", "err", fmt.Sprint(err))
	}
}
