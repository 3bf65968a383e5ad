package engine

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/batonkv/baton/examples/engine/model"
)

func FuzzStep(f *testing.F) {
	b, _ := json.Marshal(step{Through: 3, End: []reqID{importBit | 2}, Start: []startOp{{ID: 1, Tokens: []int32{1}}},
		Run: []runOp{{ID: 1, Prompt: 1}, {ID: 2, Tokens: []int32{5, 6}, Kept: 2}, {ID: 3, Tokens: []int32{5}, Propose: 3}}, Export: []exportOp{{ID: 4, Label: "a"}}})
	f.Add(b)
	f.Add([]byte(`{"Run":[{"Prompt":-1}]}`))
	f.Add([]byte(`{"Run":[{"Tokens":[1,2],"Propose":1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeStep(b)
		if err == nil && len(s.Run)+len(s.Start) > maxStepOps {
			t.Fatal("over the bound")
		}
		for _, o := range s.Run {
			if len(o.Tokens) > 1+model.MaxProposals || len(o.Tokens) == 0 && o.Prompt == 0 {
				t.Fatalf("a run of %+v", o)
			}
		}
		_, _ = decodeReport(b)
	})
}

// TestStepRound: a step says the same to every rank.
func TestStepRound(t *testing.T) {
	want := step{Through: 1<<63 + 5, Unpin: []string{"a"}, End: []reqID{importBit | 9}, Run: []runOp{{ID: 3, Tokens: []int32{7}, Kept: 1}}}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeStep(b)
	if err != nil || got.Through != want.Through || got.End[0] != want.End[0] || got.Unpin[0] != "a" || !reflect.DeepEqual(got.Run, want.Run) {
		t.Fatalf("%+v %v", got, err)
	}
	if want.empty() || !(step{}).empty() {
		t.Fatal("empty")
	}
}
