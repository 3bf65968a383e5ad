// Package pause waits for a while, or less.
package pause

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends; false: ctx did.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
