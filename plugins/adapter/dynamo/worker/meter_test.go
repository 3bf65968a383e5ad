package worker

import (
	"testing"
	"time"
)

// TestRation: a window has so many lines, and the first of a later one says how many were
// left out.
func TestRation(t *testing.T) {
	var r ration
	now := time.Unix(1, 0)
	for i := range 3 * lines {
		if ok, left := r.take(now); ok != (i < lines) || left != 0 {
			t.Fatal(i, ok, left)
		}
	}
	if ok, _ := r.take(now.Add(window - 1)); ok {
		t.Error("the window is over too early")
	}
	if ok, left := r.take(now.Add(window)); !ok || left != 2*lines+1 {
		t.Error(ok, left)
	}
	if ok, left := r.take(now.Add(window)); !ok || left != 0 {
		t.Error(ok, left)
	}
}
