package machine

import (
	"fmt"
	"strings"
)

// several counts for people: "1 export is", "2 exports are".
func several(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// spoken names ranks: "rank 1", "ranks 0, 2 and 3".
func spoken(ranks []int) string {
	var b strings.Builder
	for i, r := range ranks {
		switch {
		case i == 0 && len(ranks) == 1:
			b.WriteString("rank ")
		case i == 0:
			b.WriteString("ranks ")
		case i == len(ranks)-1:
			b.WriteString(" and ")
		default:
			b.WriteString(", ")
		}
		fmt.Fprint(&b, r)
	}
	return b.String()
}

// theyHave begins what ranks have not done.
func theyHave(ranks []int) string {
	if len(ranks) == 1 {
		return spoken(ranks) + " has"
	}
	return spoken(ranks) + " have"
}
