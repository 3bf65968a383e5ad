//go:build !cgo

package nixl

import "fmt"

// Without C there is no library to call.
type (
	library struct{}
	agent   struct{}
)

const (
	done = 0
	busy = 1
)

func load(string) (*library, error) {
	return nil, fmt.Errorf("%w: this program was built without cgo", ErrLibrary)
}

func (*library) agent(string, Config, bool) (*agent, error) { return nil, ErrLibrary }
func (*agent) metadata() ([]byte, error)                    { return nil, ErrLibrary }
func (*agent) connect(string, welcome, welcome) error       { return ErrLibrary }
func (*agent) start(rs []read) int                          { return len(rs) }
func (*agent) startRows([]read, int)                        {}
func (*agent) wait([]read, int32)                           {}
func (*agent) end([]read)                                   {}
