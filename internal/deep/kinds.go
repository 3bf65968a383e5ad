package deep

import (
	"bytes"
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"unsafe"
)

func scalar(k reflect.Kind) bool {
	return k >= reflect.Bool && k <= reflect.Float64 && k != reflect.Uintptr
}

// scalarKey writes numbers short: most are small.
func scalarKey(k reflect.Kind) func(*Codec, unsafe.Pointer, []byte) []byte {
	read := map[reflect.Kind]func(p unsafe.Pointer) int64{
		reflect.Bool: func(p unsafe.Pointer) int64 {
			if *(*bool)(p) {
				return 1
			}
			return 0
		},
		reflect.Int:     func(p unsafe.Pointer) int64 { return int64(*(*int)(p)) },
		reflect.Int8:    func(p unsafe.Pointer) int64 { return int64(*(*int8)(p)) },
		reflect.Int16:   func(p unsafe.Pointer) int64 { return int64(*(*int16)(p)) },
		reflect.Int32:   func(p unsafe.Pointer) int64 { return int64(*(*int32)(p)) },
		reflect.Int64:   func(p unsafe.Pointer) int64 { return *(*int64)(p) },
		reflect.Uint:    func(p unsafe.Pointer) int64 { return int64(*(*uint)(p)) },
		reflect.Uint8:   func(p unsafe.Pointer) int64 { return int64(*(*uint8)(p)) },
		reflect.Uint16:  func(p unsafe.Pointer) int64 { return int64(*(*uint16)(p)) },
		reflect.Uint32:  func(p unsafe.Pointer) int64 { return int64(*(*uint32)(p)) },
		reflect.Uint64:  func(p unsafe.Pointer) int64 { return int64(*(*uint64)(p)) },
		reflect.Float32: func(p unsafe.Pointer) int64 { return int64(math.Float32bits(*(*float32)(p))) },
		reflect.Float64: func(p unsafe.Pointer) int64 { return int64(math.Float64bits(*(*float64)(p))) },
	}[k]
	return func(_ *Codec, p unsafe.Pointer, b []byte) []byte { return binary.AppendVarint(b, read(p)) }
}

func stringKey(_ *Codec, p unsafe.Pointer, b []byte) []byte {
	s := *(*string)(p)
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// field is one field of a struct.
type field struct {
	off uintptr
	op  *op
}

func (c *Codec) structOp(o *op) {
	var all, written []field
	o.flat = true
	for i := range o.t.NumField() {
		f := o.t.Field(i)
		x := field{f.Offset, c.op(f.Type)}
		if !x.op.flat {
			o.flat = false
			all = append(all, x)
		}
		name := o.t.String() + "." + f.Name
		if _, ok := c.omit[name]; ok {
			c.omit[name] = true
			continue
		}
		written = append(written, x)
	}
	o.own = func(c *Codec, p unsafe.Pointer) {
		for _, f := range all {
			f.op.own(c, unsafe.Add(p, f.off))
		}
	}
	o.key = func(c *Codec, p unsafe.Pointer, b []byte) []byte {
		for _, f := range written {
			b = f.op.key(c, unsafe.Add(p, f.off), b)
		}
		return b
	}
}

// elements handles n values that lie one after the other.
func (c *Codec) elements(e *op, p unsafe.Pointer, n int) {
	for i := range n {
		e.own(c, unsafe.Add(p, uintptr(i)*e.t.Size()))
	}
}

func (c *Codec) arrayOp(o *op) {
	e := c.op(o.t.Elem())
	n := o.t.Len()
	o.flat = e.flat
	o.own = func(c *Codec, p unsafe.Pointer) { c.elements(e, p, n) }
	if e.t.Kind() == reflect.Uint8 {
		o.key = func(_ *Codec, p unsafe.Pointer, b []byte) []byte { return append(b, unsafe.Slice((*byte)(p), n)...) }
		return
	}
	o.key = func(c *Codec, p unsafe.Pointer, b []byte) []byte {
		for i := range n {
			b = e.key(c, unsafe.Add(p, uintptr(i)*e.t.Size()), b)
		}
		return b
	}
}

func (c *Codec) sliceOp(o *op) {
	e := c.op(o.t.Elem())
	o.own = func(c *Codec, p unsafe.Pointer) {
		v := reflect.NewAt(o.t, p).Elem()
		n := v.Len()
		if n == 0 {
			v.SetZero() // an empty slice may share its array with another
			return
		}
		out := reflect.MakeSlice(o.t, n, n)
		reflect.Copy(out, v)
		if !e.flat {
			c.elements(e, out.UnsafePointer(), n)
		}
		v.Set(out)
	}
	o.key = func(c *Codec, p unsafe.Pointer, b []byte) []byte {
		v := reflect.NewAt(o.t, p).Elem()
		n := v.Len()
		b = binary.AppendUvarint(b, uint64(n))
		for i, at := 0, v.UnsafePointer(); i < n; i++ {
			b = e.key(c, unsafe.Add(at, uintptr(i)*e.t.Size()), b)
		}
		return b
	}
}

func (c *Codec) mapOp(o *op) {
	k, e := c.op(o.t.Key()), c.op(o.t.Elem())
	o.own = func(c *Codec, p unsafe.Pointer) {
		v := reflect.NewAt(o.t, p).Elem()
		if v.IsNil() {
			return
		}
		out := reflect.MakeMapWithSize(o.t, v.Len())
		if v.Len() > 0 {
			key, value := reflect.New(k.t).Elem(), reflect.New(e.t).Elem()
			for it := v.MapRange(); it.Next(); {
				key.SetIterKey(it)
				value.SetIterValue(it)
				if !k.flat {
					k.own(c, addr(key))
				}
				if !e.flat {
					e.own(c, addr(value))
				}
				out.SetMapIndex(key, value)
			}
		}
		v.Set(out)
	}
	o.key = func(c *Codec, p unsafe.Pointer, b []byte) []byte {
		return c.mapKey(k, e, reflect.NewAt(o.t, p).Elem(), b)
	}
}

// mapKey writes a map's entries by the order of their keys' bytes.
func (c *Codec) mapKey(k, e *op, v reflect.Value, b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(v.Len()))
	if v.Len() == 0 {
		return b
	}
	type entry struct {
		key   []byte
		value reflect.Value
	}
	es := make([]entry, 0, v.Len())
	for it := v.MapRange(); it.Next(); {
		es = append(es, entry{k.key(c, addr(boxed(k.t, it.Key())), nil), boxed(e.t, it.Value())})
	}
	slices.SortFunc(es, func(x, y entry) int { return bytes.Compare(x.key, y.key) })
	for _, x := range es {
		b = append(b, x.key...)
		b = e.key(c, addr(x.value), b)
	}
	return b
}

// boxed is v where it has an address.
func boxed(t reflect.Type, v reflect.Value) reflect.Value {
	out := reflect.New(t).Elem()
	out.Set(v)
	return out
}

func addr(v reflect.Value) unsafe.Pointer { return v.Addr().UnsafePointer() }

func (c *Codec) pointerOp(o *op) {
	e := c.op(o.t.Elem())
	if c.shared[e.t] {
		o.flat, o.key = true, e.key
		return
	}
	o.own = func(c *Codec, p unsafe.Pointer) {
		old := *(*unsafe.Pointer)(p)
		if old == nil {
			return
		}
		for _, q := range c.copied {
			if q.old == old {
				*(*unsafe.Pointer)(p) = q.new
				return
			}
		}
		out := reflect.New(e.t)
		out.Elem().Set(reflect.NewAt(e.t, old).Elem())
		c.copied = append(c.copied, pair{old, out.UnsafePointer()})
		if !e.flat {
			e.own(c, out.UnsafePointer())
		}
		*(*unsafe.Pointer)(p) = out.UnsafePointer()
	}
	o.key = func(c *Codec, p unsafe.Pointer, b []byte) []byte {
		at := *(*unsafe.Pointer)(p)
		if at == nil {
			return append(b, 0)
		}
		if i := slices.Index(c.seen, at); i >= 0 {
			return binary.AppendUvarint(append(b, 1), uint64(i))
		}
		c.seen = append(c.seen, at)
		return e.key(c, at, append(b, 2))
	}
}

func (c *Codec) interfaceOp(o *op) {
	if o.t == reflect.TypeFor[error]() {
		o.flat, o.key = true, errorKey
		return
	}
	o.own = func(c *Codec, p unsafe.Pointer) {
		v := reflect.NewAt(o.t, p).Elem()
		if v.IsNil() {
			return
		}
		if x := c.op(v.Elem().Type()); !x.flat {
			own := boxed(x.t, v.Elem())
			x.own(c, addr(own))
			v.Set(own)
		}
	}
	o.key = func(c *Codec, p unsafe.Pointer, b []byte) []byte {
		v := reflect.NewAt(o.t, p).Elem()
		if v.IsNil() {
			return append(b, 0)
		}
		x := c.op(v.Elem().Type())
		name := x.t.String()
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
		return x.key(c, addr(boxed(x.t, v.Elem())), b)
	}
}

// errorKey writes an error as what it says.
func errorKey(_ *Codec, p unsafe.Pointer, b []byte) []byte {
	s := ""
	if err := *(*error)(p); err != nil {
		s = err.Error()
	}
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
