package client

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
)

// TestFormer: the movers of one sidecar process are awaited before another one's word
// counts, and its own never.
func TestFormer(t *testing.T) {
	mover := exec.Command("sleep", "600")
	if err := mover.Start(); err != nil {
		t.Fatal(err)
	}
	defer mover.Wait()
	defer mover.Process.Kill()
	c := &Client{}
	defer c.letGo()
	if err := errors.Join(c.former(t.Context(), 1), c.hold(mover.Process.Pid), c.former(t.Context(), 1)); err != nil {
		t.Fatal(err)
	}
	enough, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 { // a try that ends changes nothing
		err := c.former(enough, 2)
		if !errors.Is(err, handoff.ErrPeer) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d, has not exited", mover.Process.Pid)) {
			t.Fatalf("a mover that lives: %v", err)
		}
	}
	if err := mover.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.former(t.Context(), 2); err != nil || len(c.movers) > 0 || c.incarnation != 2 {
		t.Errorf("after its exit: %v, movers %v, sidecar %d", err, c.movers, c.incarnation)
	}
}
