package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/planview"
)

const columns = "%-4s %-14s %6s %4s %10s %7s  %6s %8s %6s %6s %6s %6s  %5s  %-9s %s\n"

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
	bytes, tokens := int64(0), 0
	for n, a := range r.answers {
		bytes, tokens = bytes+a.imported.Bytes, tokens+len(a.got.Tokens)
		if a.equal() {
			continue
		}
		if verdict = fmt.Sprintf("NOT EQUAL from token %d on", a.firstDifference()+1); len(r.answers) > 1 {
			verdict += fmt.Sprintf(" of answer %d", n)
		}
	}
	first := r.answers[0].imported
	p, rate := first.Phases, "-"
	if p.Move > 0 && first.Bytes >= minRated {
		rate = fmt.Sprintf("%.2f", float64(first.Bytes)/p.Move.Seconds()/1e9)
	}
	d.printColumns(by(r), r.label, r.prompt.name, fmt.Sprint(len(r.prompt.tokens)), fmt.Sprint(tokens),
		planview.Size(bytes), fmt.Sprintf("%d bl.", first.Cached/r.blockTokens), ms(p.Open), ms(p.Reserve), ms(p.Move), ms(p.Check),
		ms(p.Done), ms(p.Admit), rate, r.backend, verdict)
}

func (d *demo) printAborted(r row) {
	d.printColumns(by(r), r.label, r.prompt.name, fmt.Sprint(len(r.prompt.tokens)), "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-",
		fmt.Sprintf("aborted; %s still held it, and was told to give it back", r.src.Name))
}

// backend is what the group of a row reads from its source by, as its leader tells.
func backend(ctx context.Context, r row) string {
	l, err := r.dst.Leader.Links(ctx, control.LinksQuery{})
	if err != nil {
		return "-" // of a sidecar that was just killed
	}
	return transports(l.Links, r.src.Name)
}

// transports are those of the links from a group, each once.
func transports(links []handoff.Link, from string) string {
	var names []string
	for _, l := range links {
		t := l.Choice.Transport
		if l.Choice.Way == choice.Plain {
			t += "-plain" // as --disagg-kv-transport-backend has it
		}
		if l.Peer.Group == from && t != "" && !slices.Contains(names, t) {
			names = append(names, t)
		}
	}
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, "+")
}

func by(r row) string { return "plugin → " + r.dst.Name }

// verdict prints what the run showed and makes it an error when it is bad.
func (d *demo) verdict(out io.Writer, rows []row) error {
	var all []answer
	for _, r := range rows {
		all = append(all, r.answers...)
	}
	bad, bytes, forwards, drafted, accepted := 0, int64(0), int32(0), int32(0), int32(0)
	var wrong *answer
	for i, a := range all {
		bytes += a.imported.Bytes
		forwards += a.forwards
		drafted, accepted = drafted+a.got.Drafted, accepted+a.got.Accepted
		if !a.equal() {
			bad++
		}
		if a.imported.Bytes != a.moved {
			wrong = &all[i]
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
		names(d.prefill), names(d.decode), d.model.Name, len(all), planview.Size(bytes), forwards)
	if drafted > 0 {
		fmt.Fprintf(out, "%d tokens were drafted, %d of them came true\n", drafted, accepted)
	}
	if wrong != nil {
		return fmt.Errorf("%w: request %s moved %d bytes, its shapes say %d", ErrBytes, wrong.label, wrong.imported.Bytes, wrong.moved)
	}
	if bad > 0 {
		return fmt.Errorf("%w: %d of %d %s", ErrNotEqual, bad, len(all), d.things())
	}
	fmt.Fprintf(out, "tokens after the hand-off are EQUAL to those of one engine doing both: %d of %d %s\n", len(all), len(all), d.things())
	return nil
}

// things are what the verdict counts.
func (d *demo) things() string {
	if d.opt.Answers > 1 {
		return "answers"
	}
	return "requests"
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d.Nanoseconds())/1e6) }
