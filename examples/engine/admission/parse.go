package admission

import (
	"fmt"
	"strconv"
	"strings"
)

// maxShapes bounds a list of shapes.
const maxShapes = 1024

// ParseShapes reads shapes as TOKENS/PREFILLS/DECODES, joined by commas, in the order of
// preference. An empty text is none. ErrList says which one is wrong.
func ParseShapes(text string) ([]Shape, error) {
	if text == "" {
		return nil, nil
	}
	fields := strings.Split(text, ",")
	if len(fields) > maxShapes {
		return nil, fmt.Errorf("%w: %d, want at most %d", ErrList, len(fields), maxShapes)
	}
	var list []Shape
	for _, f := range fields {
		s, err := parseShape(f)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

func parseShape(text string) (s Shape, err error) {
	parts := strings.Split(text, "/")
	to := []*int32{&s.Tokens, &s.Prefills, &s.Decodes}
	if len(parts) != len(to) {
		return s, fmt.Errorf("%w: %.40q: want TOKENS/PREFILLS/DECODES, such as 64/1/4", ErrList, text)
	}
	for i, p := range parts {
		n, err := strconv.ParseInt(p, 10, 32)
		if err != nil || n < 0 {
			return s, fmt.Errorf("%w: %.40q: %.20q is no count", ErrList, text, p)
		}
		*to[i] = int32(n)
	}
	if s.Tokens < 1 || s.Prefills+s.Decodes < 1 {
		return s, fmt.Errorf("%w: %.40q takes nothing", ErrList, text)
	}
	return s, nil
}
