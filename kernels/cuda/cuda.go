// Package cuda is the CUDA driver as Baton uses it: devices, memory that is exported to and
// opened from other processes, and programs of copies on streams. libcuda.so.1 is opened at
// run time. It decides nothing about what is copied; package dma does.
//
// Invariant: a program's Wait returns, with whatever error, only when nothing of the program
// touches memory any more, or with ErrLost: then only the process's exit proves that.
// Contexts are made current inside each call, so goroutines may move between threads.
package cuda

import (
	"errors"
	"fmt"
)

// Sentinels of this package, one per decision of a caller.
var (
	// ErrNone reports a machine without the driver, or a build without C: copy on CPUs.
	ErrNone = errors.New("cuda: no driver")
	// ErrOld reports a driver that lacks what Baton needs: update it.
	ErrOld = errors.New("cuda: driver is too old")
	// ErrMemory reports memory that cannot be allocated, exported or opened.
	ErrMemory = errors.New("cuda: memory cannot be used")
	// ErrPeer reports GPUs that cannot reach each other's memory.
	ErrPeer = errors.New("cuda: no access between GPUs")
	// ErrGPU reports a GPU that this process does not see.
	ErrGPU = errors.New("cuda: no such GPU")
	// ErrLost reports a context that fails every call from here on: end the process.
	ErrLost = errors.New("cuda: context is lost")
)

// Oldest is the first driver that Baton works with, as the driver counts: 12.0.
const Oldest = 12000

// Error is a call that the driver refused.
type Error struct {
	Call string // "open IPC handle"
	Code int32  // CUresult
	Name string // "CUDA_ERROR_INVALID_VALUE"
	Text string
}

func (e *Error) Error() string {
	return fmt.Sprintf("cuda: %s: %s (%d): %s", e.Call, e.Name, e.Code, e.Text)
}

// Is makes an error that poisons its context an ErrLost, and one of memory an ErrMemory.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrLost:
		return sticky(e.Code)
	case ErrMemory:
		return e.Code == codeOutOfMemory
	}
	return false
}

const codeOutOfMemory = 2

// sticky are the errors after which every later call in the context fails in the same way.
func sticky(code int32) bool {
	switch code {
	case 4, // deinitialized
		214, 219, 220, // ECC, NVLink, contained
		700, 702, 709, 710, 714, 715, 716, 717, 718, 719, // illegal address to launch failed
		999: // unknown
		return true
	}
	return false
}

// Device is one GPU.
type Device struct {
	Ordinal int // as this process counts
	UUID    [16]byte
	Name    string
	SMs     int
	Copies  int // copy engines that run at once
}

// Version is a driver's version as people write it.
func Version(v int32) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// Handle is a legacy IPC handle.
type Handle [64]byte

// Pointer is what the driver knows of an address.
type Pointer struct {
	Base   uint64 // of its allocation
	Size   int64  // of its allocation, in bytes
	GPU    int    // ordinal
	Legacy bool   // a legacy handle can be made
	FD     bool   // its physical allocation can leave as a descriptor
	Pool   bool   // it is of a stream-ordered pool
}

// Kind says what an Op does.
type Kind int32

// Kinds of Op.
const (
	Copy     Kind = iota // between GPUs
	Zero                 // Src means nothing
	FromHost             // Src is host memory
	ToHost               // Dst is host memory
)

// Op is one strided copy: Width bytes, Height rows, Depth planes. Pitches are bytes from row
// to row, at least Width where there are rows; Rows are rows from plane to plane, at least
// Height. Memory layout equals struct cuda_op of shim.h.
type Op struct {
	Dst, Src             uint64
	Width, Height, Depth uint64
	DstPitch, SrcPitch   uint64
	DstRows, SrcRows     uint64
	Kind                 Kind
	Stream               int32 // index in its lane
}

// Bytes is what o writes.
func (o *Op) Bytes() int64 { return int64(o.Width * o.Height * o.Depth) }

// Flat reports whether o is one contiguous copy between GPUs.
func (o *Op) Flat() bool { return o.Kind == Copy && o.Height == 1 && o.Depth == 1 }

// Program is what a lane runs at once. Batched flat ops come first and go out in one call, on
// the first stream; the rest go out in one call each.
type Program struct {
	Ops     []Op
	Batched int
}

// MaxStreams bounds the streams of a lane.
const MaxStreams = 8
