package paged

// heap is a binary heap of block numbers, least (key, block) first, that also removes
// from the middle. It allocates only in init.
type heap struct {
	at  []int32  // heap order
	pos []int32  // block to index in at, -1: absent
	key []uint64 // by block
}

func (h *heap) init(n int) {
	h.at, h.pos, h.key = make([]int32, 0, n), make([]int32, n), make([]uint64, n)
	for i := range h.pos {
		h.pos[i] = -1
	}
}

func (h *heap) len() int { return len(h.at) }

func (h *heap) push(b int32, key uint64) {
	h.key[b], h.pos[b] = key, int32(len(h.at))
	h.at = append(h.at, b)
	h.up(len(h.at) - 1)
}

func (h *heap) pop() int32 {
	b := h.at[0]
	h.remove(b)
	return b
}

func (h *heap) remove(b int32) {
	i, last := int(h.pos[b]), len(h.at)-1
	h.swap(i, last)
	h.at, h.pos[b] = h.at[:last], -1
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h *heap) less(i, j int) bool {
	a, b := h.at[i], h.at[j]
	if h.key[a] != h.key[b] {
		return h.key[a] < h.key[b]
	}
	return a < b
}

func (h *heap) swap(i, j int) {
	h.at[i], h.at[j] = h.at[j], h.at[i]
	h.pos[h.at[i]], h.pos[h.at[j]] = int32(i), int32(j)
}

func (h *heap) up(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h *heap) down(i int) {
	for {
		c := 2*i + 1
		if c+1 < len(h.at) && h.less(c+1, c) {
			c++
		}
		if c >= len(h.at) || !h.less(c, i) {
			return
		}
		h.swap(c, i)
		i = c
	}
}
