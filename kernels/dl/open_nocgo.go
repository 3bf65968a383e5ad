//go:build !cgo

package dl

import "fmt"

// Open fails: this build has no C.
func Open(names ...string) (Library, error) {
	return Library{}, fmt.Errorf("%w: %v: this baton was built without cgo", ErrLibrary, names)
}

// Symbol fails: this build has no C.
func (l Library) Symbol(name string) (uint64, error) {
	return 0, fmt.Errorf("%w: %s: this baton was built without cgo", ErrSymbol, name)
}
