package engine

// corrupt damages an import that was just admitted, or an export, as configured.
func (r *Rank) corrupt(q *request) {
	switch r.cfg.Corrupt {
	case CorruptKV:
		r.mem.ScrambleRows(q.table.Blocks, q.pos)
	case CorruptOneBlock:
		r.mem.ScrambleRows(q.table.Blocks[:1], q.pos)
	case CorruptHeadSwap:
		r.mem.SwapHeads(q.table.Blocks, q.pos)
	case CorruptState:
		r.mem.ScrambleSlot(q.table.Slot)
	case CorruptPosition:
		q.pos = max(q.pos-1, 0)
	case CorruptNone:
	}
}
