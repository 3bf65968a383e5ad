// Package say puts words on a terminal.
package say

import (
	"fmt"
	"strings"
	"unicode"
)

// Line is what others say as one piece of a line: without what steers a terminal, and cut after
// most runes.
func Line(s string, most int) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n == most {
			b.WriteRune('…')
			break
		}
		n++
		if r == '\n' || r == '\t' {
			r = ' '
		}
		if !unicode.IsPrint(r) {
			r = '·'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Count is n of something whose plural takes an s.
func Count[N int | int32 | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
