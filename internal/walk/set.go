package walk

// set is a set of hashes: a table with open addressing, which costs a search one cache
// line where a map costs three. 0 stands for an empty place, and as a hash for 1.
type set struct {
	places []uint64 // a power of two, at most three quarters full
	n      int
}

// add reports whether h is new.
func (s *set) add(h uint64) bool {
	if 4*s.n >= 3*len(s.places) {
		s.grow()
	}
	h = max(h, 1)
	mask := uint64(len(s.places) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		switch s.places[i] {
		case h:
			return false
		case 0:
			s.places[i] = h
			s.n++
			return true
		}
	}
}

func (s *set) grow() {
	old := s.places
	s.places, s.n = make([]uint64, max(1024, 2*len(old))), 0
	for _, h := range old {
		if h != 0 {
			s.add(h)
		}
	}
}
