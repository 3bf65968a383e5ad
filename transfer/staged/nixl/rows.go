package nixl

import "fmt"

// Rows reads rows that lie apart, with a descriptor for each, between two agents of this
// process: what a connector does that has NIXL bring rows to their places. Baton's own
// transfers never do; `baton bench` compares them with it. One goroutine at a time uses it.
type Rows struct {
	from, into *agent
	n          int
}

// OpenRows makes the agents and prepares a read of the first row bytes of each stride bytes
// of from into as many rows of into, one behind the other. Both are memory outside Go's heap,
// until Close. Faults are those of New.
func OpenRows(o Options, from, into []byte, row, stride int64) (*Rows, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if row < 1 || stride <= row || int64(len(from)) < stride {
		return nil, fmt.Errorf("%w: rows of %d bytes, one each %d of %d: want strides above a row, which keep NIXL from joining rows",
			ErrConfig, row, stride, len(from))
	}
	n := int64(len(from)) / stride
	if n > maxRows || n > int64(len(into))/row {
		return nil, fmt.Errorf("%w: %d rows of %d bytes into %d bytes: want %d rows at most, and room for them", ErrConfig, n, row, len(into), maxRows)
	}
	r := &Rows{n: int(n)}
	if err := r.open(o, from, into, row, stride); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Rows) open(o Options, from, into []byte, row, stride int64) error {
	lib, err := load(o.Library)
	if err != nil {
		return err
	}
	if r.from, err = lib.agent("baton-rows-from", Config{Arena: from, Options: o}, true); err != nil {
		return err
	}
	if r.into, err = lib.agent("baton-rows-into", Config{Arena: into, Options: o}, false); err != nil {
		return err
	}
	md, err := r.from.metadata()
	if err != nil {
		return err
	}
	return r.into.connect("baton-rows-from", welcome{base: base(from), chunk: stride, chunks: int32(r.n), metadata: md},
		welcome{base: base(into), chunk: row, chunks: int32(r.n)})
}

// maxRows bounds what the library keeps for a Rows, some 200 bytes a row.
const maxRows = 1 << 20

// Count is the number of rows.
func (r *Rows) Count() int { return r.n }

// Read brings all rows, as one request of so many descriptors. It returns once they are there,
// and asks without a pause until then, which is as fast as the library goes.
func (r *Rows) Read() error {
	one := []read{{}}
	for r.into.startRows(one, r.n); one[0].status == busy; {
		r.into.wait(one, 0)
	}
	if s := one[0].status; s != done {
		return fmt.Errorf("%w: a read of %d rows failed (%d)", ErrCall, r.n, s)
	}
	return nil
}

// Close ends both agents. The memory is the caller's again.
func (r *Rows) Close() {
	for _, a := range []*agent{r.into, r.from} {
		if a != nil {
			a.end(nil)
		}
	}
}
