package deep

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"
)

type leaf struct {
	n    int
	name string
}

type shape interface{ shape() }

type square struct{ sides []int }

func (square) shape() {}

type plan struct{ big []int }

type tree struct {
	id    uint64
	list  []leaf
	sets  map[string]map[leaf]bool
	a, b  *leaf
	self  *tree
	it    shape
	err   error
	grid  [2][]int32
	sum   [4]byte
	f     func() int
	plan  *plan
	noise int
}

func codec() *Codec { return New([]reflect.Type{reflect.TypeFor[plan]()}, "deep.tree.noise") }

func sample() *tree {
	l := &leaf{3, "x"}
	t := &tree{id: 1 << 63, list: []leaf{{1, "a"}, {2, "b"}}, sets: map[string]map[leaf]bool{"k": {{1, "p"}: true, {2, "q"}: false}, "j": nil},
		a: l, b: l, it: square{[]int{4}}, err: errors.New("no"), grid: [2][]int32{{1}, {2, 3}}, sum: [4]byte{9}, f: func() int { return 7 }, plan: &plan{[]int{1}}}
	t.self = t
	return t
}

func key(t *tree) []byte { return Key(codec(), t, nil) }

func TestCloneSharesNothing(t *testing.T) {
	was := sample()
	before := key(was)
	x := Clone(codec(), was)
	if !bytes.Equal(key(x), before) {
		t.Fatal("a copy has another key")
	}
	if x.a != x.b || x.a == was.a || x.self != x || x.plan != was.plan || x.f() != 7 || x.err != was.err {
		t.Errorf("pointers of the copy: %p %p %p, self %p of %p", x.a, x.b, was.a, x.self, x)
	}
	x.list[0].n, x.a.n, x.grid[1][0] = 9, 9, 9
	x.sets["k"][leaf{7, "z"}] = true
	x.sets["new"] = nil
	x.it.(square).sides[0] = 5
	if !bytes.Equal(key(was), before) {
		t.Error("a change of the copy shows in the original")
	}
}

func TestKeySeesEveryChange(t *testing.T) {
	for name, change := range map[string]func(*tree){
		"id":        func(x *tree) { x.id-- },
		"list":      func(x *tree) { x.list[1].name = "c" },
		"shorter":   func(x *tree) { x.list = x.list[:1] },
		"map key":   func(x *tree) { x.sets["k"][leaf{8, ""}] = true },
		"map value": func(x *tree) { x.sets["k"][leaf{2, "q"}] = true },
		"pointer":   func(x *tree) { x.b = &leaf{3, "x"} }, // equal, and not the same
		"nil":       func(x *tree) { x.self = nil },
		"interface": func(x *tree) { x.it = nil },
		"within it": func(x *tree) { x.it.(square).sides[0]++ },
		"error":     func(x *tree) { x.err = errors.New("yes") },
		"grid":      func(x *tree) { x.grid[0], x.grid[1] = x.grid[1], x.grid[0] },
		"array":     func(x *tree) { x.sum[3]++ },
	} {
		x := sample()
		change(x)
		if bytes.Equal(key(x), key(sample())) {
			t.Errorf("%s: the key does not change", name)
		}
	}
	x := sample()
	x.noise, x.plan = 5, &plan{[]int{2}}
	x.sets["j"] = map[leaf]bool{}
	if !bytes.Equal(key(x), key(sample())) {
		t.Error("the key holds what is left out of it")
	}
}

// TestKeyOfMaps: pointers within a map's values are numbered in the order of its keys.
func TestKeyOfMaps(t *testing.T) {
	type pool struct {
		by   map[int]*leaf
		last *leaf
	}
	c := codec()
	var first []byte
	for i := range 50 {
		p := &pool{by: map[int]*leaf{}}
		for k := range 8 {
			p.by[(k+i)%8] = &leaf{(k + i) % 2, ""}
		}
		p.last = p.by[5]
		b := Key(c, p, nil)
		if q := Clone(c, p); q.last != q.by[5] || q.last == p.last {
			t.Fatal("a copy of a map loses what its values share")
		}
		if i == 0 {
			first = b
		} else if !bytes.Equal(b, first) {
			t.Fatal("the key depends on the order of a map")
		}
	}
}

func TestUnmet(t *testing.T) {
	c := New(nil, "deep.leaf.n", "deep.leaf.gone")
	Key(c, &leaf{}, nil)
	if got := c.Unmet(); !slices.Equal(got, []string{"deep.leaf.gone"}) {
		t.Errorf("unmet: %v", got)
	}
}

// TestEmptySlice: a copy of an empty slice does not write into the array
// that the original still uses.
func TestEmptySlice(t *testing.T) {
	type s struct{ a []int }
	x := &s{make([]int, 0, 4)}
	y := Clone(codec(), x)
	y.a = append(y.a, 1)
	x.a = append(x.a, 2)
	if y.a[0] != 1 {
		t.Error("the copy writes into the original's array")
	}
}
