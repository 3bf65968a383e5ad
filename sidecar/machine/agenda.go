package machine

// agenda holds an instant for each key, the earliest at hand: a change costs the
// logarithm of their number, and telling what has come due a few steps for each of that.
// It is derived from what its keys name: in which order equal instants lie shows nowhere.
// The zero agenda is empty.
type agenda[K comparable] struct {
	heap  []entry[K]  // no entry is later than its two children, at 2i+1 and 2i+2
	place map[K]int32 // of a key in heap
}

type entry[K comparable] struct {
	at  Now
	key K
}

// set gives k its instant, in place of the one it has.
func (a *agenda[K]) set(k K, at Now) {
	i, ok := a.place[k]
	if !ok {
		if a.place == nil {
			a.place = map[K]int32{}
		}
		i = int32(len(a.heap))
		a.heap, a.place[k] = append(a.heap, entry[K]{at, k}), i
	}
	a.heap[i].at = at
	a.down(a.up(i))
}

// drop forgets k.
func (a *agenda[K]) drop(k K) {
	i, ok := a.place[k]
	if !ok {
		return
	}
	last := int32(len(a.heap) - 1)
	a.swap(i, last)
	a.heap[last] = entry[K]{}
	a.heap = a.heap[:last]
	delete(a.place, k)
	if i < last {
		a.down(a.up(i))
	}
}

// next is the earliest instant; ok is false when there is none.
func (a *agenda[K]) next() (at Now, ok bool) {
	if len(a.heap) == 0 {
		return 0, false
	}
	return a.heap[0].at, true
}

// due are the keys whose instant has come, in any order. They stay.
func (a *agenda[K]) due(now Now) (ks []K) {
	var open []int32 // entries to look at
	for i := int32(0); ; {
		if i < int32(len(a.heap)) && a.heap[i].at <= now {
			ks, open = append(ks, a.heap[i].key), append(open, 2*i+1, 2*i+2)
		}
		if len(open) == 0 {
			return ks
		}
		i, open = open[len(open)-1], open[:len(open)-1]
	}
}

// up moves the entry at i before those that are later, and returns where it is then.
func (a *agenda[K]) up(i int32) int32 {
	for i > 0 && a.heap[i].at < a.heap[(i-1)/2].at {
		a.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	return i
}

// down moves the entry at i behind those that are earlier.
func (a *agenda[K]) down(i int32) {
	for n := int32(len(a.heap)); ; {
		first := i
		for c := 2*i + 1; c <= 2*i+2 && c < n; c++ {
			if a.heap[c].at < a.heap[first].at {
				first = c
			}
		}
		if first == i {
			return
		}
		a.swap(i, first)
		i = first
	}
}

func (a *agenda[K]) swap(i, j int32) {
	a.heap[i], a.heap[j] = a.heap[j], a.heap[i]
	a.place[a.heap[i].key], a.place[a.heap[j].key] = i, j
}
