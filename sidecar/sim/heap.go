package sim

import "time"

// moment is something that happens at an instant.
type moment struct {
	at  time.Duration
	seq uint32   // order within one instant
	to  *sidecar // whom it reaches; nil: nobody's process
	f   func()
}

func (a *moment) before(b *moment) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// moments is a heap with the earliest moment first. Its own code, since container/heap
// boxes every element.
type moments []moment

func (h *moments) push(m moment) {
	*h = append(*h, m)
	s := *h
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !m.before(&s[up]) {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = m
}

func (h *moments) pop() moment {
	s := *h
	first := s[0]
	m := s[len(s)-1]
	s[len(s)-1] = moment{}
	s = s[:len(s)-1]
	*h = s
	if len(s) == 0 {
		return first
	}
	i := 0
	for {
		least := i*4 + 1
		if least >= len(s) {
			break
		}
		for c, end := least+1, min(least+4, len(s)); c < end; c++ { // its own children: least moves
			if s[c].before(&s[least]) {
				least = c
			}
		}
		if !s[least].before(&m) {
			break
		}
		s[i] = s[least]
		i = least
	}
	s[i] = m
	return first
}
