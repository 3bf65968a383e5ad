package machine

import "testing"

func TestWords(t *testing.T) {
	for _, c := range []struct {
		ranks []int
		want  string
	}{
		{[]int{3}, "rank 3 has"},
		{[]int{0, 1}, "ranks 0 and 1 have"},
		{[]int{0, 2, 11}, "ranks 0, 2 and 11 have"},
	} {
		if got := theyHave(c.ranks); got != c.want {
			t.Errorf("%v: %q", c.ranks, got)
		}
	}
	for n, want := range []string{"0 exports are", "1 export is", "2 exports are"} {
		if got := several(n, "export is", "exports are"); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}
