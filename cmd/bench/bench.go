// Package bench measures Baton against a baseline in one run: the two take turns, and
// what counts is the ratio of each pair, since the machine's speed drifts. Rows need
// no GPU; each has the target that Baton holds itself to.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Result is one row as it was measured. Samples are raw, in the order taken.
type Result struct {
	Name     string    `json:"name"`
	What     string    `json:"what"`
	Unit     string    `json:"unit"`               // of Value: "x of memcpy", "us", ...
	Value    float64   `json:"value"`              // median
	Target   string    `json:"target,omitempty"`   // what Baton holds itself to
	Met      bool      `json:"met"`                // against Target; true without one
	Samples  []float64 `json:"samples"`            // Value's samples, one per pair or round
	Baseline []float64 `json:"baseline,omitempty"` // the baseline's own samples, in BaseUnit
	BaseUnit string    `json:"baseline_unit,omitempty"`
	Note     string    `json:"note,omitempty"`
}

// Report is one run.
type Report struct {
	Date    string   `json:"date"`
	Go      string   `json:"go"`
	Cores   int      `json:"cores"`
	CPU     string   `json:"cpu"`
	Command string   `json:"command"`
	Commit  string   `json:"commit,omitempty"`
	Binary  string   `json:"binary,omitempty"` // SHA-256 of the executable
	Rows    []Result `json:"rows"`
}

// Row is one line of the bench: Run may give several results.
type Row struct {
	Name string
	What string
	Run  func(ctx context.Context, o Options) ([]Result, error)
}

// Options is how long to measure.
type Options struct {
	Rounds int // pairs of each row
	Binary string
	// Progress hears what is being measured.
	Progress func(what string)
}

// Rows are all rows, in the order they are printed.
func Rows() []Row {
	return []Row{
		{"shm", "re-shard through shared memory against one big memcpy of the same bytes", shm},
		{"plan", "planning a re-shard", plan},
		{"lower", "lowering one rank pair of a request", lowering},
		{"staging", "hand-offs between hosts that share no memory against one flat stream of the same bytes", staging},
		{"staging-rows", "hand-offs by NIXL between hosts that share no memory against a NIXL descriptor for each row of the same bytes", stagingRows},
		{"verify", "hand-offs whose bytes are summed up at both ends against hand-offs that are not", verifyCost},
		{"load", "many small hand-offs over TCP beside shared memory", loaded},
		{"parts", "time from a prompt's last chunk to its admission when its chunks left as they were computed", early},
		{"control", "a one-block hand-off against an empty gRPC call, all over loopback", controlCost},
		{"plugin", "a control plane's calls through baton plugin against the same calls made to the sidecar", pluginCost},
		{"dynamo", "a call by NVIDIA Dynamo's Python client of Baton's endpoint against one of Dynamo's own Python worker, and KV events told to its routers against its own publisher's", dynamoCost},
	}
}

// Run measures the rows whose names match, all when only is "".
func Run(ctx context.Context, only string, o Options) (Report, error) {
	re, err := regexp.Compile(only)
	if err != nil {
		return Report{}, fmt.Errorf("bench: row pattern %q: %w", only, err)
	}
	rep := Report{Date: time.Now().UTC().Format("2006-01-02"), Go: runtime.Version(), Cores: runtime.NumCPU(), CPU: CPU()}
	var names []string
	matched := false
	for _, r := range Rows() {
		names = append(names, r.Name)
		if !re.MatchString(r.Name) {
			continue
		}
		matched = true
		o.Progress(r.Name + ": " + r.What)
		rs, err := r.Run(ctx, o)
		if err != nil {
			return rep, fmt.Errorf("bench %s: %w", r.Name, err)
		}
		rep.Rows = append(rep.Rows, rs...)
	}
	switch {
	case len(rep.Rows) == 0 && matched:
		return rep, fmt.Errorf("bench: nothing measured: this host lacks what %q needs, which was said above", only)
	case len(rep.Rows) == 0:
		return rep, fmt.Errorf("bench: no row matches %q: rows are %s", only, strings.Join(names, ", "))
	}
	return rep, nil
}

// ErrMissed says that a row missed its target.
var ErrMissed = errors.New("bench: a target was missed")

// Missed is nil, or ErrMissed with the names of the rows that missed their targets.
func (r Report) Missed() error {
	var rows []string
	for _, x := range r.Rows {
		if x.Target != "" && !x.Met {
			rows = append(rows, fmt.Sprintf("%s is %s %s, want %s", x.Name, figure(x.Value), x.Unit, x.Target))
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrMissed, strings.Join(rows, "; "))
}

// Print writes the report for people.
func (r Report) Print(w io.Writer) {
	fmt.Fprintf(w, "%s, %d cores, %s, %s\n\n", r.CPU, r.Cores, r.Go, r.Date)
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "row\tmedian\tmin\tmax\tunit\ttarget\tmet")
	for _, x := range r.Rows {
		met := "yes"
		if !x.Met {
			met = "no"
		}
		if x.Target == "" {
			met = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Name, figure(x.Value), figure(slices.Min(x.Samples)), figure(slices.Max(x.Samples)), x.Unit, x.Target, met)
	}
	t.Flush()
}

// Markdown writes the rows as docs/PERFORMANCE.md has them.
func (r Report) Markdown(w io.Writer) {
	fmt.Fprintf(w, "%s, %d cores, %s, %s: `%s`\n\n", r.CPU, r.Cores, r.Go, r.Date, r.Command)
	fmt.Fprintln(w, "| row | what | median | min | max | unit | target |\n|---|---|---|---|---|---|---|")
	for _, x := range r.Rows {
		fmt.Fprintln(w, x.Line())
	}
}

// Line is a row of the table.
func (x Result) Line() string {
	target := x.Target
	if target != "" && !x.Met {
		target += ", missed"
	}
	what := x.What
	if x.Note != "" {
		what += "; " + x.Note
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |", x.Name, what, figure(x.Value), figure(slices.Min(x.Samples)),
		figure(slices.Max(x.Samples)), x.Unit, target)
}

func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// Median of a copy of v.
func Median[T cmp.Ordered](v []T) T {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// AtLeast and AtMost make a result and compare its median with the target.
func AtLeast(r Result, target float64) Result {
	r.Value = Median(r.Samples)
	r.Target, r.Met = fmt.Sprintf(">= %g", target), r.Value >= target
	return r
}

func AtMost(r Result, target float64) Result {
	r.Value = Median(r.Samples)
	r.Target, r.Met = fmt.Sprintf("<= %g", target), r.Value <= target
	return r
}

// timed is how long f took, in seconds.
func timed(f func() error) (float64, error) {
	t := time.Now()
	err := f()
	return time.Since(t).Seconds(), err
}
