package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		if !For(ctx, 2*time.Second) || time.Since(began) != 2*time.Second {
			t.Errorf("%v", time.Since(began))
		}
		if For(ctx, 2*time.Second) || time.Since(began) != 3*time.Second {
			t.Errorf("outlasts its context: %v", time.Since(began))
		}
	})
}
