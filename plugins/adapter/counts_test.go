package adapter

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
)

func TestCheckCounts(t *testing.T) {
	many := map[string]float64{}
	for n := range MaxCounts {
		many[fmt.Sprint("c", n)] = 1
	}
	for _, good := range []map[string]float64{nil, many, {"kv_stored_2_total": -1.5, strings.Repeat("a", MaxCountName): 0}} {
		if err := CheckCounts(good); err != nil {
			t.Error(err)
		}
	}
	many["one_more"] = 1
	for _, bad := range []map[string]float64{many, {"": 1}, {"1a": 1}, {"_a": 1}, {"a-b": 1}, {"A": 1}, {"aé": 1}, {"a{}": 1}, {strings.Repeat("a", MaxCountName+1): 1}, {"a": math.NaN()}, {"a": math.Inf(-1)}} {
		if err := CheckCounts(bad); !errors.Is(err, handoff.ErrBound) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
