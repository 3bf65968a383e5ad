package say

import "testing"

func TestLine(t *testing.T) {
	for s, want := range map[string]string{"a\x1b[2J\nb": "a·[2J b", "äöüß": "äöü…", "äöü": "äöü", "": "", "\xff": "\ufffd"} {
		most := 3
		if len(s) > 0 && s[0] == 'a' {
			most = 100
		}
		if got := Line(s, most); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	if Count(1, "link") != "1 link" || Count(int64(0), "link") != "0 links" || Count(int32(2), "link") != "2 links" {
		t.Error(Count(1, "link"), Count(int64(0), "link"), Count(int32(2), "link"))
	}
}
