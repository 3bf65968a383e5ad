package steer

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/batonkv/baton/internal/say"
)

// Widths of columns, in runes: they grow to these, and what is longer sticks out.
const (
	maxGroupCol = 24
	maxLabelCol = 20
	whatCol     = 9
)

// Bounds, in runes, of what others say.
const (
	maxWhy   = 300
	maxLabel = 64
)

// show writes lines, aligned: a column widens for what comes, and stays so.
type show struct {
	out          io.Writer
	json         *json.Encoder // nil: for people
	color        bool
	group, label int
}

func newShow(out io.Writer, o WatchOptions) *show {
	s := &show{out: out, color: o.Color, group: 9, label: 4}
	if o.JSON {
		s.json = json.NewEncoder(out)
		s.json.SetEscapeHTML(false)
	}
	return s
}

// room widens the column of groups.
func (s *show) room(group string) {
	s.group = max(s.group, min(utf8.RuneCountInString(group), maxGroupCol))
}

// line writes e, with the time of this moment: notices carry none.
func (s *show) line(e event) error {
	at := time.Now()
	if s.json != nil {
		return s.json.Encode(e.record(at.UTC()))
	}
	label := say.Line(e.Label, maxLabel)
	s.label = max(s.label, min(utf8.RuneCountInString(label), maxLabelCol))
	s.room(e.Group)
	group, what := pad(say.Line(e.Group, maxLabel), s.group), pad(e.What, whatCol)
	clock := at.Format("15:04:05.000")
	if s.color {
		clock, group, what = dim+clock+plain, bold+group+plain, hue(e.What)+what+plain
	}
	_, err := fmt.Fprintln(s.out, strings.TrimRight(clock+"  "+group+"  "+what+"  "+pad(label, s.label)+"  "+e.text, " "))
	return err
}

func pad(s string, n int) string {
	return s + strings.Repeat(" ", max(n-utf8.RuneCountInString(s), 0))
}

// Colours of a terminal.
const (
	plain, bold, dim         = "\x1b[0m", "\x1b[1m", "\x1b[2m"
	red, green, yellow, cyan = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"
)

// hue is the colour of an event: green is good, red is not, yellow wants a look.
func hue(what string) string {
	switch what {
	case "imported", "ready", "back", "serving":
		return green
	case "failed", "not-ready", "lost", "gone", "rank-down":
		return red
	case "gap", "draining":
		return yellow
	case "exported", "announced":
		return cyan
	}
	return dim
}
