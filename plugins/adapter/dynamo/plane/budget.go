package plane

import "sync/atomic"

// budget is what requests may hold together, in bytes.
type budget struct{ left atomic.Int64 }

// held is what one request holds of a budget.
type held struct {
	of *budget
	n  int64
}

// more takes n bytes more, or says that there are none.
func (h *held) more(n int64) bool {
	if h.of.left.Add(-n) < 0 {
		h.of.left.Add(n)
		return false
	}
	h.n += n
	return true
}

// back gives all of it back.
func (h *held) back() {
	h.of.left.Add(h.n)
	h.n = 0
}
