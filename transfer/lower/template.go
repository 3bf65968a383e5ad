package lower

import (
	"errors"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/reshard"
)

var errStub = errors.New("stub")

// Template is one rank pair of a plan, lowered without block ids. Safe for concurrent use.
type Template struct{}

// New lowers the pair-th pair of p.
func New(p *reshard.Plan, pair uint32) (*Template, error) { return nil, errStub }

// Nests appends the nests of j to dst.
func (t *Template) Nests(dst []Nest, j Job) ([]Nest, error) { return nil, errStub }

// Bytes is what j writes.
func (t *Template) Bytes(j Job) (int64, error) { return 0, errStub }

// MarshalBinary and Decode carry a template across a process border.
func (t *Template) MarshalBinary() ([]byte, error) { return nil, errStub }

// Decode reads what MarshalBinary wrote; input is bounded and checked.
func Decode(b []byte) (*Template, error) { return nil, errStub }

var _ layout.Rank
