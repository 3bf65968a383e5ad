package steer

import (
	"fmt"
	"strings"
	"unicode"
)

// Bounds, in runes, of what others say.
const (
	maxWhy   = 300
	maxLabel = 64
)

// clean is what others say as one piece of a line: without what steers a terminal, cut short.
func clean(s string, most int) string {
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

func count(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
