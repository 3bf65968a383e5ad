package drive

import (
	"time"

	"github.com/batonkv/baton/plugins/adapter/session"
)

// wall is the process's clock.
type wall struct {
	epoch time.Time
	timer *time.Timer
}

func newWall() *wall {
	w := &wall{epoch: time.Now(), timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	return w
}

func (w *wall) Now() session.Now { return time.Since(w.epoch) }

func (w *wall) At(at session.Now) <-chan time.Time {
	w.timer.Reset(max(at-w.Now(), 0))
	return w.timer.C
}
