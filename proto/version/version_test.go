package version

import (
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string][]int{"": {1}, "1": {1}, "2,1,2": {1, 2}, "65535": {65535}} {
		if got, err := Parse(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "-1", "1,", ",", "x", "1 2", "65536", strings.Repeat("1,", 200) + "1"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestCommon(t *testing.T) {
	for _, c := range []struct {
		a, b []int
		want int
	}{{[]int{1}, []int{1}, 1}, {[]int{1, 2}, []int{1}, 1}, {[]int{1, 2, 3}, []int{2, 3, 4}, 3}, {[]int{1}, []int{2}, 0}, {nil, []int{1}, 0}} {
		if got, ok := Common(c.a, c.b); got != c.want || ok != (c.want > 0) {
			t.Errorf("%v and %v: %d, %v", c.a, c.b, got, ok)
		}
	}
}

func TestThisBuild(t *testing.T) {
	for _, vs := range [][]int{Plugin(), Control()} {
		if again, err := Parse(Format(vs)); err != nil || !slices.Equal(again, vs) {
			t.Errorf("%v: %v, %v", vs, again, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("1,2")
	f.Fuzz(func(t *testing.T, text string) {
		vs, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(Format(vs)); err != nil || !slices.Equal(again, vs) {
			t.Errorf("%v became %v: %v", vs, again, err)
		}
	})
}
