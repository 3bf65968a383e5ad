package events

import "context"

// Discard is the Publisher of those who want no events; it counts no drops.
type Discard struct{}

// Publish does nothing.
func (Discard) Publish(Event) {}

// Dropped is 0.
func (Discard) Dropped() uint64 { return 0 }

// Close does nothing.
func (Discard) Close(context.Context) error { return nil }
