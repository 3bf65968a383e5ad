package discovery

import (
	"cmp"
	"slices"
)

// Check says which name of the scope is wrong.
func (s Scope) Check() error {
	if err := CheckName("cluster", s.Cluster); err != nil {
		return err
	}
	for _, p := range s.Pools {
		if err := CheckName("pool", p); err != nil {
			return err
		}
	}
	return nil
}

// Prefixes are the key prefixes that hold the scope's records, each once.
func (s Scope) Prefixes() []string {
	if len(s.Pools) == 0 {
		return []string{Root + s.Cluster + "/"}
	}
	var out []string
	for _, p := range s.Pools {
		out = append(out, Root+s.Cluster+"/"+p+"/")
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Holds says whether r is in the scope.
func (s Scope) Holds(r Record) bool {
	return r.Cluster == s.Cluster && (len(s.Pools) == 0 || slices.Contains(s.Pools, r.Pool))
}

// Compare orders records by cluster, pool, group and rank.
func Compare(a, b Record) int {
	return cmp.Or(
		cmp.Compare(a.Cluster, b.Cluster),
		cmp.Compare(a.Pool, b.Pool),
		cmp.Compare(a.Group, b.Group),
		cmp.Compare(a.Rank, b.Rank),
	)
}

// View is a sorted set of records under their keys, what an implementation keeps for
// one watcher. The zero View is empty. Not safe for concurrent use.
type View struct {
	records []Record // sorted by Compare
	byKey   map[string]Record
}

// Put adds r or replaces the record of its key.
func (v *View) Put(r Record) {
	if v.byKey == nil {
		v.byKey = map[string]Record{}
	}
	v.byKey[r.Key()] = r
	i, found := slices.BinarySearchFunc(v.records, r, Compare)
	if found {
		v.records[i] = r
		return
	}
	v.records = slices.Insert(v.records, i, r)
}

// Delete removes the record at key, if there is one.
func (v *View) Delete(key string) {
	r, ok := v.byKey[key]
	if !ok {
		return
	}
	delete(v.byKey, key)
	if i, found := slices.BinarySearchFunc(v.records, r, Compare); found {
		v.records = slices.Delete(v.records, i, i+1)
	}
}

// Snapshot is a copy of the view at revision rev; the caller owns it, but for the
// Transports, which nobody writes.
func (v *View) Snapshot(rev int64) Snapshot {
	return Snapshot{Rev: rev, Records: slices.Clone(v.records)}
}
