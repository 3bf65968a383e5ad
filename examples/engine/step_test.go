package engine

import (
	"encoding/json"
	"testing"
)

func FuzzStep(f *testing.F) {
	b, _ := json.Marshal(step{Through: 3, End: []reqID{importBit | 2}, Start: []startOp{{ID: 1, Tokens: []int32{1}}},
		Run: []runOp{{ID: 1, Prompt: 1}, {ID: 2, Token: 5}}, Export: []exportOp{{ID: 4, Label: "a"}}})
	f.Add(b)
	f.Add([]byte(`{"Run":[{"Prompt":-1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeStep(b)
		if err == nil && len(s.Run)+len(s.Start) > maxStepOps {
			t.Fatal("over the bound")
		}
		_, _ = decodeReport(b)
	})
}

// TestStepRound: a step says the same to every rank.
func TestStepRound(t *testing.T) {
	want := step{Through: 1<<63 + 5, Unpin: []string{"a"}, End: []reqID{importBit | 9}, Run: []runOp{{ID: 3}}}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeStep(b)
	if err != nil || got.Through != want.Through || got.End[0] != want.End[0] || got.Unpin[0] != "a" || got.Run[0] != want.Run[0] {
		t.Fatalf("%+v %v", got, err)
	}
	if want.empty() || !(step{}).empty() {
		t.Fatal("empty")
	}
}
