package cmd

import (
	"errors"
	"testing"
)

// Run by hand there is no sidecar to copy for, and the error says who starts movers.
func TestMoverByHand(t *testing.T) {
	c := newMoverCmd()
	c.SetArgs(nil)
	c.SilenceErrors, c.SilenceUsage = true, true
	var ue *UsageError
	if err := c.Execute(); !errors.As(err, &ue) || ue.Hint == "" {
		t.Errorf("baton mover = %v, want a UsageError with a hint", err)
	}
}
