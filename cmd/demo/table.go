package demo

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/transfer/planview"
)

const columns = "%-4s %-14s %6s %4s %10s %7s  %6s %8s %6s %6s %6s %6s  %5s  %-8s %s\n"

// minRated is the least number of bytes whose rate says anything: below, a move is
// all start and end.
const minRated = 1 << 20

// placed is the last column but one where another process places the requests.
const placed = "%-18s "

func (d *demo) printHeader() {
	fmt.Fprintf(d.out, "%51s%s\n", "", "milliseconds in each phase")
	d.printColumns("imported by", "req", "prompt", "tokens", "new", "moved", "reused", "open", "reserve", "move", "check", "done", "admit", "GB/s", "backend", "tokens")
}

// printColumns prints one line; by is shown where the demo does not place requests itself.
func (d *demo) printColumns(by string, cells ...any) {
	const format = columns
	if d.external != nil {
		last := len(cells) - 1
		cells = append(cells[:last:last], fmt.Sprintf(placed, by)+fmt.Sprint(cells[last]))
	}
	fmt.Fprintf(d.out, format, cells...)
}

func (d *demo) printRow(r row) {
	verdict := "equal"
	if !r.equal() {
		verdict = fmt.Sprintf("NOT EQUAL from token %d on", firstDifference(r.got, r.want)+1)
	}
	p := r.imported.Phases
	rate := "-"
	if p.Move > 0 && r.imported.Bytes >= minRated {
		rate = fmt.Sprintf("%.2f", float64(r.imported.Bytes)/p.Move.Seconds()/1e9)
	}
	d.printColumns(by(r), r.label, r.prompt.name, fmt.Sprint(len(r.prompt.tokens)), fmt.Sprint(len(r.got)),
		planview.Size(r.imported.Bytes), fmt.Sprintf("%d bl.", r.imported.Cached/r.blockTokens), ms(p.Open), ms(p.Reserve), ms(p.Move), ms(p.Check),
		ms(p.Done), ms(p.Admit), rate, d.opt.Dev.Backend, verdict)
}

func (d *demo) printAborted(r row) {
	d.printColumns(by(r), r.label, r.prompt.name, fmt.Sprint(len(r.prompt.tokens)), "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", d.opt.Dev.Backend,
		fmt.Sprintf("aborted; %s still held it, and was told to give it back", r.src.Name))
}

func by(r row) string { return "plugin → " + r.dst.Name }

// verdict prints what the run showed and makes it an error when it is bad.
func (d *demo) verdict(out io.Writer, rows []row) error {
	bad, bytes, forwards := 0, int64(0), int32(0)
	var wrong *row
	for i, r := range rows {
		bytes += r.imported.Bytes
		forwards += r.forwards
		if !r.equal() {
			bad++
		}
		if r.imported.Bytes != r.moved {
			wrong = &rows[i]
		}
	}
	names := func(groups []*dev.Running) string {
		var cuts []string
		for _, g := range groups {
			cut := fmt.Sprintf("%s %v", g.Name, split(g.Group))
			if g.Typed() {
				cut += fmt.Sprintf(" (%v)", types(g.Group))
			}
			cuts = append(cuts, cut)
		}
		return strings.Join(cuts, ", ")
	}
	fmt.Fprintf(out, "\n%s → %s, model %s: %d hand-offs, %s moved by the decode ranks' movers, %d prompt tokens computed again\n",
		names(d.prefill), names(d.decode), d.model.Name, len(rows), planview.Size(bytes), forwards)
	if wrong != nil {
		return fmt.Errorf("%w: request %s moved %d bytes, its shapes say %d", ErrBytes, wrong.label, wrong.imported.Bytes, wrong.moved)
	}
	if bad > 0 {
		return fmt.Errorf("%w: %d of %d requests", ErrNotEqual, bad, len(rows))
	}
	fmt.Fprintf(out, "tokens after the hand-off are EQUAL to those of one engine doing both: %d of %d requests\n", len(rows), len(rows))
	return nil
}

func firstDifference(a, b []int32) int {
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d.Nanoseconds())/1e6) }
