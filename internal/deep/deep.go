// Package deep copies values whole and writes them down as bytes, unexported fields,
// maps and pointers included. An exhaustive walk uses it on production machines: a
// state is stepped on a copy, and known by its bytes.
//
// A copy shares nothing that changes with its original: two pointers to one thing in
// the original point to one thing in the copy. Strings, functions, errors and what is
// named as shared are taken as never changing. Slices are taken as not overlapping.
// Equal bytes mean equal values: maps are written in the order of their keys, pointers
// by what they point to and by where else it occurs. A nil slice and an empty one are
// the same, and so are nil and empty maps.
package deep

import (
	"fmt"
	"reflect"
	"slices"
	"unsafe"
)

// Codec copies and writes values. It keeps what it learnt of types, and is not safe for
// concurrent use.
type Codec struct {
	shared map[reflect.Type]bool
	omit   map[string]bool // "package.Type.field" to: it was met
	ops    map[reflect.Type]*op

	copied []pair           // pointers of the copy under way
	seen   []unsafe.Pointer // pointers of the key under way
}

// op is how one type is handled.
type op struct {
	t    reflect.Type
	flat bool // its bytes are its copy
	// own makes the value at p, which is the bytes of another one, own what it points to.
	own func(c *Codec, p unsafe.Pointer)
	key func(c *Codec, p unsafe.Pointer, b []byte) []byte
}

type pair struct{ old, new unsafe.Pointer }

// New makes a codec. Values of the types in shared are not copied and not written; a
// pointer type says so of what it points to. Fields in omit ("machine.Machine.out") are
// copied and not written: only what decides nothing may be among them.
func New(shared []reflect.Type, omit ...string) *Codec {
	c := &Codec{shared: map[reflect.Type]bool{}, omit: map[string]bool{}, ops: map[reflect.Type]*op{}}
	for _, t := range shared {
		c.shared[t] = true
	}
	for _, f := range omit {
		c.omit[f] = false
	}
	return c
}

// Unmet are the omitted fields that no value had, in order: a list of them is stale.
func (c *Codec) Unmet() []string {
	var out []string
	for f, met := range c.omit {
		if !met {
			out = append(out, f)
		}
	}
	slices.Sort(out)
	return out
}

// Clone returns a whole copy of what v points to.
func Clone[T any](c *Codec, v *T) *T {
	out := new(T)
	*out = *v
	c.copied = append(c.copied[:0], pair{unsafe.Pointer(v), unsafe.Pointer(out)})
	if o := c.op(reflect.TypeFor[T]()); !o.flat {
		o.own(c, unsafe.Pointer(out))
	}
	return out
}

// Key appends v's bytes to b.
func Key[T any](c *Codec, v *T, b []byte) []byte {
	c.seen = append(c.seen[:0], unsafe.Pointer(v))
	return c.op(reflect.TypeFor[T]()).key(c, unsafe.Pointer(v), b)
}

// op returns how t is handled, found out once.
func (c *Codec) op(t reflect.Type) *op {
	if o := c.ops[t]; o != nil {
		return o
	}
	o := &op{t: t}
	c.ops[t] = o // a type may contain pointers to itself
	if c.shared[t] {
		o.flat, o.key = true, func(_ *Codec, _ unsafe.Pointer, b []byte) []byte { return b }
		return o
	}
	switch k := t.Kind(); {
	case scalar(k):
		o.flat, o.key = true, scalarKey(k)
	case k == reflect.String:
		o.flat, o.key = true, stringKey
	case k == reflect.Func:
		o.flat, o.key = true, func(_ *Codec, _ unsafe.Pointer, b []byte) []byte { return b }
	case k == reflect.Struct:
		c.structOp(o)
	case k == reflect.Array:
		c.arrayOp(o)
	case k == reflect.Slice:
		c.sliceOp(o)
	case k == reflect.Map:
		c.mapOp(o)
	case k == reflect.Pointer:
		c.pointerOp(o)
	case k == reflect.Interface:
		c.interfaceOp(o)
	default:
		panic(fmt.Sprintf("deep: %v cannot be copied", t))
	}
	return o
}
