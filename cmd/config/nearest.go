package config

// Nearest is the known word closest to word in edit distance, or "" when none is
// close enough to be what was meant: a third of the longer word's length at most.
// Equal distances go to the earlier word of known.
func Nearest(word string, known []string) string {
	best, bestDist := "", 0
	for _, k := range known {
		longer := max(len(word), len(k))
		if longer > maxWord {
			continue
		}
		d := distance(word, k)
		if d > max(1, longer/3) {
			continue
		}
		if best == "" || d < bestDist {
			best, bestDist = k, d
		}
	}
	return best
}

// maxWord bounds the quadratic work on words from outside.
const maxWord = 128

// distance is the edit distance of a and b with swaps of neighbours, in bytes.
func distance(a, b string) int {
	before := make([]int, len(b)+1)
	above := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := above[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, above[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, above, row = above, row, before
	}
	return above[len(b)]
}
