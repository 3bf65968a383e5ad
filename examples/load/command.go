package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
)

// Op is what a driver asks rank 0 for.
type Op string

const (
	Announce Op = "announce" // Label will be exported
	Export   Op = "export"   // prefill Prompt under Label, and export it
	Release  Op = "release"  // give Label up: not prefilled yet, or exported
	Import   Op = "import"   // ask the sidecar, as rank 0's engine, for Manifest
	Abort    Op = "abort"    // end the import of Label
	Stats    Op = "stats"    // what is held
)

// Command is one line of the driver.
type Command struct {
	Op       Op
	Label    string            `json:",omitempty"`
	Prompt   *Prompt           `json:",omitempty"` // Export, Import
	Finished bool              `json:",omitempty"` // Export: the request ended at prefill
	Copies   int32             `json:",omitempty"` // Export
	MaxHold  time.Duration     `json:",omitempty"` // Export
	Manifest *handoff.Manifest `json:",omitempty"` // Import
	Deadline time.Duration     `json:",omitempty"` // Import
	// AbortAt, of Import, ends it by the engine's own word: AtReserve before Reserved is
	// said, from 1 on that many steps after it; AbortNever leaves it alone.
	AbortAt int `json:",omitempty"`
}

// Values of Command.AbortAt beside a number of steps.
const (
	AbortNever = 0
	AtReserve  = -1
)

const (
	maxLine  = 1 << 20
	maxLabel = 256
	maxSteps = 1 << 16
)

// parse takes one line.
func parse(b []byte) (Command, error) {
	var c Command
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("%w: %w", ErrCommand, err)
	}
	return c, c.check()
}

func (c Command) check() error {
	if c.Op != Stats && (c.Label == "" || len(c.Label) > maxLabel) {
		return fmt.Errorf("%w: %s: label of %d bytes: want 1 to %d", ErrCommand, c.Op, len(c.Label), maxLabel)
	}
	if c.Prompt != nil {
		if err := c.Prompt.Check(); err != nil {
			return fmt.Errorf("%w: %w", ErrCommand, err)
		}
	}
	switch c.Op {
	case Announce, Release, Abort, Stats:
		return nil
	case Export:
		if c.Prompt == nil || c.Copies < 0 || c.MaxHold < 0 {
			return fmt.Errorf("%w: export without a prompt, or of negative numbers", ErrCommand)
		}
		return nil
	case Import:
		if c.Prompt == nil || c.Manifest == nil || c.Deadline < 0 || c.AbortAt < AtReserve || c.AbortAt > maxSteps {
			return fmt.Errorf("%w: import without prompt and manifest, or out of bounds", ErrCommand)
		}
		return nil
	}
	return fmt.Errorf("%w: op %q", ErrCommand, c.Op)
}

// EventKind is what rank 0 tells the driver.
type EventKind string

const (
	Exported EventKind = "exported" // Label is held; Manifest
	Freed    EventKind = "freed"    // Label's export came back on every rank
	Imported EventKind = "imported" // the import that this engine asked for went well; Cached
	Failed   EventKind = "failed"   // of an import or export that this engine asked for; Err, Safe
	Admitted EventKind = "admitted" // Label is the engine's on every rank; Prompt, Cached
	Ended    EventKind = "ended"    // an admitted request was decoded to its end and freed
	Wrong    EventKind = "wrong"    // memory does not hold what it must; Err
	Held     EventKind = "held"     // answer to Stats
)

// Event is one line of rank 0.
type Event struct {
	Kind     EventKind
	Label    string            `json:",omitempty"`
	Manifest *handoff.Manifest `json:",omitempty"`
	Prompt   *Prompt           `json:",omitempty"`
	Finished bool              `json:",omitempty"` // Admitted
	Late     bool              `json:",omitempty"` // Admitted: it began before its source was exported whole
	Cached   int32             `json:",omitempty"`
	Bytes    int64             `json:",omitempty"` // Imported
	Name     string            `json:",omitempty"` // Failed: of the sentinel
	Err      string            `json:",omitempty"`
	Safe     bool              `json:",omitempty"`
	Holding  *Holding          `json:",omitempty"` // Held
}

// Holding is what a group's ranks hold, equal on all of them.
type Holding struct {
	FreeBlocks, FreeSlots     int32
	Queued                    int32 // exports that wait for memory
	Exports, Imports, Decodes int32
	Steps                     uint64
}
