// Package dl opens C libraries at run time and finds their symbols, so that a build
// needs none of them. It never closes one: libraries that start threads do not survive it.
// It calls nothing that it finds; the packages above keep tables of typed pointers in C.
package dl

import "errors"

// Sentinels of this package.
var (
	// ErrLibrary reports that no file of that name can be loaded.
	ErrLibrary = errors.New("dl: library cannot be loaded")
	// ErrSymbol reports a library that lacks a symbol.
	ErrSymbol = errors.New("dl: no such symbol")
)

// Library is one loaded library. Its zero value has no symbols.
type Library struct {
	name   string
	handle uint64 // what dlopen gave
}

// Name is the name under which the library was found.
func (l Library) Name() string { return l.name }
