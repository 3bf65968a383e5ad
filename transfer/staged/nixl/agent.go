//go:build cgo

package nixl

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// library is the table of functions of one file. It lives as long as the process: what
// it has loaded cannot be unloaded.
type library struct{ c *C.struct_nx_lib }

var loaded struct {
	sync.Mutex
	libs map[string]*library // by path
}

// load opens the library at a path that Find gave.
func load(path string) (*library, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if l := loaded.libs[path]; l != nil {
		return l, nil
	}
	if path == "" || strings.ContainsRune(path, 0) { // the loader would take "" for this program
		return nil, fmt.Errorf("%w: %q is no path", ErrLibrary, path)
	}
	if err := prepare(); err != nil {
		return nil, err
	}
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	l := &library{}
	var why reason
	if err := why.of(C.nx_open(p, &l.c, &why[0], C.size_t(len(why)))); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if loaded.libs == nil {
		loaded.libs = map[string]*library{}
	}
	loaded.libs[path] = l
	return l, nil
}

// reason is the shim's word on a failure.
type reason [2048]C.char

func (r *reason) of(status C.int) error {
	text := C.GoString(&r[0])
	switch status {
	case 0:
		return nil
	case C.NX_NO_LIBRARY:
		return fmt.Errorf("%w: %s", ErrLibrary, text)
	case C.NX_NO_SYMBOL:
		return fmt.Errorf("%w: it lacks %s: want NIXL 1.0 or later", ErrOld, text)
	case C.NX_STUB:
		return fmt.Errorf("%w: name the library of a NIXL that was built, or of a wheel", ErrStub)
	case C.NX_NO_BACKEND:
		return fmt.Errorf("%w: %s", ErrBackend, text)
	case C.NX_METADATA:
		return fmt.Errorf("%w: %s", ErrMetadata, text)
	case C.NX_MEMORY:
		return fmt.Errorf("%w: out of memory", ErrCall)
	}
	return fmt.Errorf("%w: %s", ErrCall, text)
}

// agent is an agent over an arena; one goroutine at a time uses it.
type agent struct{ c *C.struct_nx_agent }

// agent makes one, over the arena of cfg. serves: peers read from it.
func (l *library) agent(name string, cfg Config, serves bool) (*agent, error) {
	pairs, err := cfg.Options.params()
	if err != nil {
		return nil, err
	}
	var params strings.Builder
	for _, k := range slices.Sorted(maps.Keys(pairs)) {
		params.WriteString(k + "\x00" + pairs[k] + "\x00")
	}
	params.WriteByte(0)
	n, b, p := C.CString(name), C.CString(cfg.Options.Backend), C.CBytes([]byte(params.String()))
	defer C.free(unsafe.Pointer(n))
	defer C.free(unsafe.Pointer(b))
	defer C.free(p)
	var thread C.int
	if serves {
		thread = 1
	}
	a := &agent{}
	var why reason
	err = why.of(C.nx_agent_new(l.c, n, b, (*C.char)(p), thread, C.uint64_t(base(cfg.Arena)), C.uint64_t(len(cfg.Arena)), &a.c, &why[0], C.size_t(len(why))))
	if err != nil {
		return nil, fmt.Errorf("backend %s: %w", cfg.Options.Backend, err)
	}
	return a, nil
}

// metadata is what a peer needs to read the agent's memory.
func (a *agent) metadata() ([]byte, error) {
	var data unsafe.Pointer
	var n C.size_t
	var why reason
	if err := why.of(C.nx_agent_metadata(a.c, &data, &n, &why[0], C.size_t(len(why)))); err != nil {
		return nil, err
	}
	defer C.free(data)
	return C.GoBytes(data, C.int(min(n, maxMetadata+1))), nil
}

// connect prepares reads from the chunks of a peer's agent into own ones.
func (a *agent) connect(peer string, from, into welcome) error {
	name := C.CString(peer)
	defer C.free(unsafe.Pointer(name))
	own, theirs := chunksOf(into), chunksOf(from)
	var why reason
	return why.of(C.nx_agent_connect(a.c, name, unsafe.Pointer(unsafe.SliceData(from.metadata)), C.size_t(len(from.metadata)), own, theirs,
		&why[0], C.size_t(len(why))))
}

func chunksOf(m welcome) C.struct_nx_chunks {
	return C.struct_nx_chunks{addr: C.uint64_t(m.base), bytes: C.int64_t(m.chunk), count: C.int32_t(m.chunks)}
}

// The statuses of a read that did not fail.
const (
	done = C.NX_DONE
	busy = C.NX_BUSY
)

// reads are rs as the shim has them.
func reads(rs []read) *C.struct_nx_read {
	return (*C.struct_nx_read)(unsafe.Pointer(unsafe.SliceData(rs)))
}

// start starts reads in order, some at least, and returns how many.
func (a *agent) start(rs []read) int {
	return int(C.nx_agent_start(a.c, reads(rs), C.int32_t(len(rs))))
}

// startRows starts one read of n chunks, a descriptor for each.
func (a *agent) startRows(rs []read, n int) { C.nx_agent_start_rows(a.c, reads(rs), C.int32_t(n)) }

// wait asks after reads that are busy until one has ended, for some time at most.
func (a *agent) wait(rs []read, microseconds int32) {
	C.nx_agent_wait(a.c, reads(rs), C.int32_t(len(rs)), C.int32_t(microseconds))
}

// end ends the agent, and the reads that it has in hand: nothing touches its memory
// for it any more.
func (a *agent) end(rs []read) { C.nx_agent_end(a.c, reads(rs), C.int32_t(len(rs))) }
