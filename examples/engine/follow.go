package engine

import (
	"context"
	"encoding/json"
	"time"
)

// follow runs the steps that rank 0 sends.
func (r *Rank) follow() error {
	for {
		b, err := r.group.Receive()
		if err != nil {
			return err
		}
		st, err := decodeStep(b)
		if err != nil {
			return err
		}
		switch {
		case st.Stop:
			return nil
		case st.Turn != nil:
			return r.turn(*st.Turn)
		}
		r.poll()
		if _, err := r.apply(st); err != nil {
			return err
		}
		out, err := json.Marshal(r.report(st))
		if err != nil {
			return err
		}
		if err := r.group.Report(out); err != nil {
			return err
		}
	}
}

// closeLate closes the group's streams a while after ctx has ended: a rank may wait in a
// read of them, and closing is what wakes it. Rank 0 ends a group in a step, and ranks that
// are told to end one by one all hear it; only a rank that hangs makes others wait.
func (r *Rank) closeLate(ctx context.Context) (stop func()) {
	late := time.AfterFunc(time.Hour, func() { _ = r.group.Close() })
	late.Stop()
	ended := context.AfterFunc(ctx, func() { late.Reset(time.Second) })
	return func() {
		ended()
		late.Stop()
	}
}
