// Package session decides what happens between one sidecar and one adapter: a pure
// machine that takes events and gives effects. It keeps no clock and reaches nothing
// (package drive carries its effects out).
//
// One call is open at a time, so an adapter that is slow holds up nobody: what happens
// meanwhile is kept as the newest state and a bounded list of notices, and when the
// list is full the adapter is told the whole state instead.
package session

import (
	"time"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/sidecar/control"
)

// Now is an instant, since any fixed one.
type Now = time.Duration

// Life numbers the lives of an adapter from 1.
type Life uint64

// Config is what a session needs to know; zero times take the defaults of Default.
type Config struct {
	Section []byte
	// Deadlines: of a life's start, of a call and of Drain.
	Start, Call, Drain time.Duration
	// Pace is the shortest time from one Notify to the next, Refresh the longest until the
	// state is looked at without a notice, Beat the longest between two calls.
	Pace, Refresh, Beat time.Duration
	// Least and Most bound the pause before another life. It doubles with each failure, and
	// begins anew after a life that was synced for Most.
	Least, Most time.Duration
	// Mint gives random numbers, which spread the pauses of many sidecars.
	Mint func() uint64
}

// Default has the times of a sidecar.
func Default() Config {
	return Config{Start: 10 * time.Second, Call: 10 * time.Second, Drain: 3 * time.Second,
		Pace: 50 * time.Millisecond, Refresh: time.Second, Beat: 10 * time.Second,
		Least: 200 * time.Millisecond, Most: 30 * time.Second, Mint: func() uint64 { return 0 }}
}

// Stage is how far a session is.
type Stage uint8

const (
	Waiting     Stage = iota + 1 // between two lives
	Opening                      // a life starts
	Registering                  // Register runs
	Configuring                  // Configure runs
	Syncing                      // the first state is looked at or told
	Serving                      // synced, nothing to tell
	Notifying                    // Notify runs
	Draining                     // Drain runs
	Ending                       // a life ends
	Refused                      // the adapter refused its configuration; final until Stop
	Stopped                      // final
)

var stageNames = [...]string{Waiting: "waiting", Opening: "opening", Registering: "registering", Configuring: "configuring", Syncing: "syncing",
	Serving: "serving", Notifying: "notifying", Draining: "draining", Ending: "ending", Refused: "refused", Stopped: "stopped"}

func (s Stage) String() string {
	if int(s) < len(stageNames) && s > 0 {
		return stageNames[s]
	}
	return "stage(?)"
}

// Stages are all of them, for those who show each.
func Stages() (all []Stage) {
	for s := Waiting; s <= Stopped; s++ {
		all = append(all, s)
	}
	return all
}

// Status is what a session tells of itself.
type Status struct {
	Stage     Stage
	Info      adapter.Info // of the newest life that registered
	Restarts  uint64       // lives that ended unasked
	Coalesced uint64       // updates that told the whole state because the adapter fell behind
	Lost      uint64       // notices that were in none
	Err       error        // why the last life ended; nil once another one was synced
}

// Event is what a Machine is told: one of the types below. A word of another life than
// the present one is dropped.
type Event interface{ event() }

// Opened says that a life has begun, or that it could not.
type Opened struct {
	Life Life
	Err  error
}

// Answered says how the open call ended.
type Answered struct {
	Life Life
	Info adapter.Info // of Register
	Err  error
}

// Looked is the answer to Look.
type Looked struct {
	Life  Life
	State adapter.State
	Err   error
}

// Noticed tells of a notice of the sidecar.
type Noticed struct{ Notice control.Notice }

// Ended says that a life ended unasked: its process exited.
type Ended struct {
	Life Life
	Err  error
}

// Closed says that nothing of a life is left.
type Closed struct{ Life Life }

// Tick says that time has passed.
type Tick struct{}

// Stop asks for an orderly end.
type Stop struct{}

func (Opened) event()   {}
func (Answered) event() {}
func (Looked) event()   {}
func (Noticed) event()  {}
func (Ended) event()    {}
func (Closed) event()   {}
func (Tick) event()     {}
func (Stop) event()     {}

// Effect is what a Machine asks for: one of the types below.
type Effect interface{ effect() }

// Open asks for a life; Opened answers.
type Open struct{ Life Life }

// Call asks for a call of the adapter; Answered answers.
type Call struct {
	Life    Life
	Verb    adapter.Verb
	Section []byte         // Configure
	State   adapter.State  // Sync
	Update  adapter.Update // Notify
}

// Look asks for the newest state; Looked answers.
type Look struct{ Life Life }

// Close asks for the end of a life, whatever it does. Hard: it is not asked first. Closed
// answers.
type Close struct {
	Life Life
	Hard bool
}

// Tell says that the status changed.
type Tell struct{ Status Status }

func (Open) effect()  {}
func (Call) effect()  {}
func (Look) effect()  {}
func (Close) effect() {}
func (Tell) effect()  {}
