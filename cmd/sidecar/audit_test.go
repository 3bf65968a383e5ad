package sidecar

import (
	"bytes"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// What changes something, and who is refused, is logged and published; what only asks is in
// the debug log.
func TestAudit(t *testing.T) {
	var out bytes.Buffer
	var told []events.Event
	a := startAudit(slog.New(slog.NewTextHandler(&out, nil)), func(e events.Event) { told = append(told, e) })
	id := handoff.ID{Group: "p", Instance: 1, Leader: 0xab, N: 3}
	a.hear(control.Audited{By: "baton://control/x", Call: "Import", ID: id, Label: "r1", Elapsed: time.Second})
	a.hear(control.Audited{By: "baton://control/x", Call: "Status"})
	a.hear(control.Audited{By: "baton://control/x", Call: "Get", Err: handoff.ErrUnknown})
	a.hear(control.Audited{By: "baton://control/x", Call: "Watch"})
	a.hear(control.Audited{By: "baton://c/t/g/0", Call: "Status", Err: fmt.Errorf("no: %w", handoff.ErrDenied)})
	a.hear(control.Audited{By: "baton://admin/y", Call: "Lifecycle", Asked: "pause"})
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{
		`msg=control by=baton://control/x call=Import label=r1 handoff=p@ab.3 elapsed=1s`,
		`msg=control by=baton://control/x call=Watch elapsed=0s`,
		`msg=control by=baton://c/t/g/0 call=Status elapsed=0s err="no: `,
		`msg=control by=baton://admin/y call=Lifecycle asked=pause elapsed=0s`,
	}
	if len(lines) != len(want) || len(told) != len(want) {
		t.Fatalf("%d events, log\n%s", len(told), out.String())
	}
	for i, w := range want {
		if !strings.Contains(lines[i], w) || !strings.Contains(lines[i], "level=INFO") {
			t.Errorf("%q in %q", w, lines[i])
		}
		if told[i].Time.IsZero() {
			t.Errorf("event %d has no time", i)
		}
		told[i].Time = time.Time{}
	}
	if w := (events.Event{Kind: events.Control, By: "baton://control/x", Call: "Import", Handoff: "p@ab.3", Label: "r1", Elapsed: time.Second}); !reflect.DeepEqual(told[0], w) {
		t.Errorf("%+v", told[0])
	}
	if told[2].Cause == "" || told[3].Asked != "pause" {
		t.Errorf("%+v, %+v", told[2], told[3])
	}
}

// stuck is a log that takes nothing until it is let.
type stuck struct {
	bytes.Buffer
	entered, let chan struct{}
}

func (s *stuck) Write(b []byte) (int, error) {
	select {
	case s.entered <- struct{}{}:
	default:
	}
	<-s.let
	return s.Buffer.Write(b)
}

// A log that takes nothing keeps no call waiting, and tells afterwards how many it missed.
func TestAuditKeepsNobodyWaiting(t *testing.T) {
	out := &stuck{entered: make(chan struct{}, 1), let: make(chan struct{})}
	n := 0
	a := startAudit(slog.New(slog.NewTextHandler(out, nil)), func(events.Event) { n++ })
	a.hear(control.Audited{Call: "Reset"})
	<-out.entered
	for range auditQueue + 5 {
		a.hear(control.Audited{Call: "Reset"})
	}
	close(out.let)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); n != auditQueue+6 || strings.Count(got, "msg=control ") != auditQueue+1 || !strings.Contains(got, "calls=5") {
		t.Errorf("%d events, %d lines", n, strings.Count(got, "msg=control "))
	}
}
