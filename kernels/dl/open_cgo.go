//go:build cgo

package dl

/*
#cgo LDFLAGS: -ldl
#include "shim.h"
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"strings"
	"unsafe"
)

// Open loads the first of names that can be loaded: paths, or names that the loader looks for.
func Open(names ...string) (Library, error) {
	var why []string
	for _, n := range names {
		c := C.CString(n)
		var text [512]C.char
		h := C.dl_open(c, &text[0], C.size_t(len(text)))
		C.free(unsafe.Pointer(c))
		if h != 0 {
			return Library{name: n, handle: uint64(h)}, nil
		}
		why = append(why, C.GoString(&text[0]))
	}
	return Library{}, fmt.Errorf("%w: %s", ErrLibrary, strings.Join(why, "; "))
}

// Symbol is the address of a function or variable of l.
func (l Library) Symbol(name string) (uint64, error) {
	if l.handle == 0 {
		return 0, fmt.Errorf("%w: %s: no library is open", ErrSymbol, name)
	}
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	p := C.dl_symbol(C.uint64_t(l.handle), c)
	if p == 0 {
		return 0, fmt.Errorf("%w: %s in %s", ErrSymbol, name, l.name)
	}
	return uint64(p), nil
}
