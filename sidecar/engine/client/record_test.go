package client

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/sidecar/handoff"
)

var noon = time.Unix(1e9, 0)

// replay gives a record messages of both sides and tells what the engine hears, what is
// told already, and what is refused.
func replay(t *testing.T, r *record, ms ...any) (said []string) {
	t.Helper()
	for _, m := range ms {
		switch m := m.(type) {
		case handoff.Decision:
			if err := r.holds(m); err != nil {
				said = append(said, "gap")
			}
		case handoff.FromEngine:
			told, err := r.sends(m, noon)
			if told {
				said = append(said, "told")
			}
			if err != nil {
				said = append(said, "refused")
			}
		case handoff.ToEngine:
			if !r.hears(m) {
				said = append(said, "swallowed")
			}
		case func(*record):
			m(r)
		}
	}
	return said
}

func takes(n uint64) func(*record) { return func(r *record) { r.take(n) } }

func export(l string) handoff.Export { return handoff.Export{Label: l, Tokens: 1} }
func part(l string, n uint32) handoff.ExportPart {
	return handoff.ExportPart{Label: l, Part: n, Tokens: 1}
}
func closes(l string, n uint32) handoff.Export {
	return handoff.Export{Label: l, Tokens: 1, Parts: n}
}
func failed(l string) handoff.Failed   { return handoff.Failed{Label: l, Err: handoff.ErrGone} }
func refused(l string) handoff.Failed  { return handoff.Failed{Label: l, Err: handoff.ErrPosition} }
func free(n uint64, l string) decision { return decision{N: n, Kind: handoff.Free, Label: l} }

type decision = handoff.Decision

func reserve(n uint64) decision {
	return decision{N: n, Kind: handoff.Reserve, Label: fmt.Sprint(n), Tokens: 2, Hashes: []uint64{n}}
}

func importOf(l string, id uint64) handoff.Import {
	return handoff.Import{Label: l, Manifest: handoff.Manifest{ID: handoff.ID{N: id}}}
}

func imported(l string, id uint64) handoff.Imported {
	return handoff.Imported{Label: l, ID: handoff.ID{N: id}}
}

// course is a course of messages, what is said of each, and what is stated after them.
type course struct {
	what  string
	said  []string
	in    []any
	state handoff.Attach
}

func stated(t *testing.T, cs []course) {
	for _, c := range cs {
		t.Run(c.what, func(t *testing.T) {
			r := newRecord(handoff.Attach{}, noon)
			if said := replay(t, r, c.in...); !reflect.DeepEqual(said, c.said) {
				t.Errorf("said %v, want %v", said, c.said)
			}
			if got := r.state(handoff.Attach{}); !reflect.DeepEqual(got, c.state) {
				t.Errorf("states %+v, want %+v", got, c.state)
			}
		})
	}
}

func ds(ds ...decision) []decision { return ds }

// TestStated: exports and imports.
func TestStated(t *testing.T) {
	stated(t, []course{
		{"nothing", nil, nil, handoff.Attach{}},
		{"an export is held", nil, []any{handoff.Announce{Label: "a"}, export("a")}, handoff.Attach{Pins: []string{"a"}}},
		{"an announced label is not", nil, []any{handoff.Announce{Label: "a"}}, handoff.Attach{}},
		{"refused", nil, []any{export("a"), export("b"), refused("a")}, handoff.Attach{Pins: []string{"b"}}},
		{"released before it was exported", nil, []any{export("a"), failed("a")}, handoff.Attach{Pins: []string{"a"}}},
		{"exported anew before the first was told gone", nil, []any{export("a"), free(1, "a"), takes(1), handoff.Applied{N: 1}, export("a"), failed("a")},
			handoff.Attach{Pins: []string{"a"}, Held: 1, Applied: 1, Decisions: []decision{free(1, "a")}}},
		{"unpinned", nil, []any{export("a"), handoff.UnpinExport{Label: "a"}}, handoff.Attach{}},
		{"unpinned twice", []string{"swallowed"}, []any{export("a"), handoff.UnpinExport{Label: "a"}, handoff.UnpinExport{Label: "a"}}, handoff.Attach{}},
		{"given up and not yet freed", nil, []any{export("a"), handoff.ReleaseExport{Label: "a"}}, handoff.Attach{Pins: []string{"a"}}},
		{"free is held, and not taken", nil, []any{export("a"), free(1, "a")},
			handoff.Attach{Pins: []string{"a"}, Held: 1, Decisions: ds(free(1, "a"))}},
		{"free is taken", nil, []any{export("a"), free(1, "a"), takes(1)}, handoff.Attach{Held: 1, Decisions: ds(free(1, "a"))}},
		{"freed and exported again", nil, []any{export("a"), free(1, "a"), takes(1), handoff.Applied{N: 1}, export("a")},
			handoff.Attach{Pins: []string{"a"}, Held: 1, Applied: 1, Decisions: ds(free(1, "a"))}},
		{"exported again before Applied is said", []string{"refused"}, []any{export("a"), free(1, "a"), takes(1), export("a"), handoff.Applied{N: 1}},
			handoff.Attach{Held: 1, Applied: 1, Decisions: ds(free(1, "a"))}},
		{"without a label", []string{"refused", "refused"}, []any{export(""), importOf("", 1)}, handoff.Attach{}},
		{"exported twice", []string{"refused"}, []any{export("a"), export("a"), refused("a")}, handoff.Attach{}},
		{"an import waits", nil, []any{importOf("a", 1)}, handoff.Attach{Imports: []string{"a"}}},
		{"an import by the manifest's label", []string{"told"}, []any{
			handoff.Import{Manifest: handoff.Manifest{Label: "m"}}, handoff.Import{Label: "m", Manifest: handoff.Manifest{Label: "m"}}},
			handoff.Attach{Imports: []string{"m"}}},
		{"imported, and told again", []string{"swallowed"}, []any{importOf("a", 1), imported("a", 1), imported("a", 1)}, handoff.Attach{}},
		{"failed, and told again", []string{"swallowed"}, []any{importOf("a", 1), failed("a"), failed("a")}, handoff.Attach{}},
		{"a late end of the label's last use", []string{"swallowed"}, []any{importOf("a", 1), imported("a", 1), importOf("a", 2), imported("a", 1)},
			handoff.Attach{Imports: []string{"a"}}},
		{"the same import again, and another of its label", []string{"told", "refused"},
			[]any{importOf("a", 1), importOf("a", 1), importOf("a", 2)}, handoff.Attach{Imports: []string{"a"}}},
		{"a failure of what was announced", []string{"swallowed"}, []any{handoff.Announce{Label: "a"}, failed("a"), failed("a")}, handoff.Attach{}},
		{"a failure of what was announced, after it was exported", []string{"swallowed"},
			[]any{handoff.Announce{Label: "a"}, export("a"), handoff.Failed{Label: "a", Err: handoff.ErrNotReady, SourceSafe: true}}, handoff.Attach{Pins: []string{"a"}}},
		{"a failure of a label that imports and exports is the import's", nil,
			[]any{export("a"), importOf("a", 1), failed("a")}, handoff.Attach{Pins: []string{"a"}}},
		{"in parts", nil, []any{part("a", 1), part("a", 2), closes("a", 2)}, handoff.Attach{Pins: []string{"a"}}},
		{"a part is left out, and closed with another number", []string{"refused", "refused"}, []any{part("a", 1), part("a", 3), closes("a", 2)},
			handoff.Attach{Pins: []string{"a"}}},
		{"begun twice, and exported whole", []string{"refused", "refused"}, []any{part("a", 1), part("a", 1), export("a")}, handoff.Attach{Pins: []string{"a"}}},
		{"continued after the end", []string{"told", "told"}, []any{part("a", 1), handoff.UnpinExport{Label: "a"}, part("a", 2), closes("a", 1)}, handoff.Attach{}},
		{"continued after it was refused", []string{"told", "told"}, []any{part("a", 1), refused("a"), part("a", 2), closes("a", 1)}, handoff.Attach{}},
		{"continued after it was given up", []string{"told"}, []any{part("a", 1), handoff.ReleaseExport{Label: "a"}, part("a", 2)},
			handoff.Attach{Pins: []string{"a"}}},
		{"continued after Free", []string{"told"}, []any{part("a", 1), free(1, "a"), takes(1), part("a", 2)},
			handoff.Attach{Held: 1, Decisions: ds(free(1, "a"))}},
		{"begun anew before the first was told gone", nil, []any{export("a"), free(1, "a"), takes(1), handoff.Applied{N: 1}, part("a", 1), failed("a"), part("a", 2)},
			handoff.Attach{Pins: []string{"a"}, Held: 1, Applied: 1, Decisions: []decision{free(1, "a")}}},
		{"what the client says itself", []string{"refused", "refused", "refused"},
			[]any{handoff.Attach{}, handoff.BuffersReady{}, handoff.Held{}}, handoff.Attach{}},
	})
}

// TestSaidAgain: what a new sidecar is told once the rank is attached.
func TestSaidAgain(t *testing.T) {
	announce := func(l string) handoff.Announce { return handoff.Announce{Label: l} }
	for name, c := range map[string]struct {
		do   []any
		want []handoff.FromEngine
	}{
		"nothing":             {nil, nil},
		"the highest fence":   {[]any{handoff.Fenced{N: 4}, handoff.Fenced{N: 3}}, []handoff.FromEngine{handoff.Fenced{N: 4}}},
		"announced, in order": {[]any{announce("b"), announce("a"), announce("b"), handoff.Fenced{N: 1}}, []handoff.FromEngine{handoff.Fenced{N: 1}, announce("a"), announce("b")}},
		"exported, given up or refused": {[]any{announce("a"), announce("b"), announce("c"), announce("d"), export("a"), handoff.ReleaseExport{Label: "b"}, failed("c")},
			[]handoff.FromEngine{announce("d")}},
	} {
		r := newRecord(handoff.Attach{}, noon)
		replay(t, r, c.do...)
		if got := r.afterwards(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: says %+v, want %+v", name, got, c.want)
		}
	}
}

func TestStatedDecisions(t *testing.T) {
	stated(t, []course{
		{"decisions", nil, []any{decision{N: 1}, decision{N: 2}, takes(1), handoff.Applied{N: 1}},
			handoff.Attach{Applied: 1, Held: 2, Decisions: ds(decision{N: 1}, decision{N: 2})}},
		{"contents of a Reserve, until it is applied", nil, []any{reserve(1), reserve(2), takes(2), handoff.Applied{N: 1}},
			handoff.Attach{Applied: 1, Held: 2, Decisions: ds(decision{N: 1, Kind: handoff.Reserve, Label: "1"}, reserve(2))}},
		{"taken as far as they are held", []string{"refused"}, []any{decision{N: 1}, takes(9), handoff.Applied{N: 1}, handoff.Applied{N: 2}},
			handoff.Attach{Applied: 1, Held: 1, Decisions: ds(decision{N: 1})}},
		{"settled", nil, []any{decision{N: 1}, decision{N: 2}, takes(2), handoff.Applied{N: 2}, decision{N: 3, Settled: 2}},
			handoff.Attach{Applied: 2, Held: 3, Decisions: ds(decision{N: 3, Settled: 2})}},
		{"settled by one that is held", nil, []any{decision{N: 1}, decision{N: 2}, takes(2), handoff.Applied{N: 2}, decision{N: 2, Settled: 1}},
			handoff.Attach{Applied: 2, Held: 2, Decisions: ds(decision{N: 2})}},
		{"a gap changes nothing", []string{"gap"}, []any{decision{N: 1}, decision{N: 3}}, handoff.Attach{Held: 1, Decisions: ds(decision{N: 1})}},
		{"again and out of order", []string{"gap"}, []any{decision{N: 1}, decision{N: 1}, decision{N: 3}, decision{N: 2}, decision{N: 1}},
			handoff.Attach{Held: 2, Decisions: ds(decision{N: 1}, decision{N: 2})}},
		{"applied what was not taken", []string{"refused"}, []any{decision{N: 1}, handoff.Applied{N: 1}}, handoff.Attach{Held: 1, Decisions: ds(decision{N: 1})}},
		{"applied goes back", []string{"refused"}, []any{decision{N: 1}, takes(1), handoff.Applied{N: 1}, handoff.Applied{N: 0}},
			handoff.Attach{Held: 1, Applied: 1, Decisions: ds(decision{N: 1})}},
		{"the weights are those of what was applied", nil, []any{
			decision{N: 1, Kind: handoff.SetWeightsEpoch, WeightsEpoch: 7}, decision{N: 2, Kind: handoff.SetWeightsEpoch, WeightsEpoch: 8},
			takes(2), handoff.Applied{N: 1}}, handoff.Attach{Held: 2, Applied: 1, Model: handoff.ModelIdentity{WeightsEpoch: 7},
			Decisions: ds(decision{N: 1, Kind: handoff.SetWeightsEpoch, WeightsEpoch: 7}, decision{N: 2, Kind: handoff.SetWeightsEpoch, WeightsEpoch: 8})}},
	})
}

// TestStatementFits: what a thousand imports under way make an engine state goes into one
// message.
func TestStatementFits(t *testing.T) {
	r := newRecord(handoff.Attach{}, noon)
	for n := range uint64(1000) {
		d := reserve(n + 1)
		d.Hashes = slices.Repeat([]uint64{1<<63 - 1}, 4096)
		if err := r.holds(d); err != nil {
			t.Fatal(err)
		}
	}
	replay(t, r, takes(1000), handoff.Applied{N: 1000})
	a := r.state(handoff.Attach{})
	if _, err := codec.EncodeFromEngine(a); err != nil || len(a.Decisions) != 1000 {
		t.Errorf("%d decisions: %v", len(a.Decisions), err)
	}
}

// TestRecordGoesOn: an engine that states an earlier client's sessions has its decisions.
func TestRecordGoesOn(t *testing.T) {
	a := handoff.Attach{Pins: []string{"p"}, Imports: []string{"i"}, Applied: 3, Held: 4,
		Decisions: []decision{{N: 3, Settled: 1}, {N: 4, Settled: 2}}}
	r := newRecord(a, noon)
	if got := r.state(handoff.Attach{}); !reflect.DeepEqual(got, a) {
		t.Errorf("states %+v, want %+v", got, a)
	}
	if ds := r.take(9); ds != nil {
		t.Errorf("took %v: they are the engine's already", ds)
	}
	if said := replay(t, r, decision{N: 5}, takes(5), handoff.Applied{N: 5}, imported("i", 9)); said != nil {
		t.Errorf("said %v", said)
	}
}

// TestRecordIsBounded: an engine or a leader that never ends anything costs bounded memory.
func TestRecordIsBounded(t *testing.T) {
	r := newRecord(handoff.Attach{}, noon)
	var err error
	for i := 0; i <= maxPins && err == nil; i++ {
		_, err = r.sends(export(fmt.Sprint(i)), noon)
	}
	if !errors.Is(err, handoff.ErrBound) || len(r.pins) != maxPins {
		t.Errorf("%d exports: %v", len(r.pins), err)
	}
	err = nil
	for i := 0; i <= maxImports && err == nil; i++ {
		_, err = r.sends(importOf(fmt.Sprint(i), 1), noon)
	}
	if !errors.Is(err, handoff.ErrBound) || len(r.imports) != maxImports {
		t.Errorf("%d imports: %v", len(r.imports), err)
	}
	for n := range uint64(2 * maxHeld) { // settled by nobody
		replay(t, r, decision{N: n + 1}, takes(n+1), handoff.Applied{N: n + 1})
	}
	if len(r.log) > maxHeld+1 || r.log[len(r.log)-1].N != 2*maxHeld {
		t.Errorf("%d decisions are kept, up to %d", len(r.log), r.log[len(r.log)-1].N)
	}
}

func TestGiveUp(t *testing.T) {
	r := newRecord(handoff.Attach{}, noon)
	late := importOf("late", 1)
	late.Deadline = time.Minute
	replay(t, r, importOf("b", 1), late, importOf("a", 1))
	if at, ok := r.due(); !ok || !at.Equal(noon.Add(defaultDeadline)) {
		t.Errorf("due %v, %v", at, ok)
	}
	if got := r.giveUp(noon.Add(defaultDeadline-1), false); got != nil {
		t.Errorf("given up early: %v", got)
	}
	if got := r.giveUp(noon.Add(defaultDeadline), false); !reflect.DeepEqual(got, []string{"a", "b"}) {
		t.Errorf("given up %v", got)
	}
	if got := r.giveUp(noon, true); !reflect.DeepEqual(got, []string{"late"}) {
		t.Errorf("given up %v", got)
	}
	if _, ok := r.due(); ok {
		t.Error("something is due")
	}
}

func TestImportOfAnotherRank(t *testing.T) {
	r := newRecord(handoff.Attach{Rank: 1, Ranks: 2}, time.Time{})
	if _, err := r.sends(handoff.Import{Label: "a"}, time.Time{}); !errors.Is(err, handoff.ErrRole) || len(r.imports) > 0 {
		t.Error(err)
	}
}
