package nixl

import (
	"bytes"
	"errors"
	"testing"

	"github.com/batonkv/baton/transfer/staged/nixl/fake"
)

// TestRows: each row comes from its stride, again and again, and nothing else does.
func TestRows(t *testing.T) {
	for name, c := range map[string]struct {
		n    int
		tls  string // UCX_TLS
		open func(testing.TB) Options
	}{
		"default": {4096, "all", real},
		"tcp":     {4096, "tcp", real},
		"fake":    {16, "", func(t testing.TB) Options { return pretend(t) }},
	} {
		t.Run(name, func(t *testing.T) {
			const row, stride = 256, 1024
			o := c.open(t)
			t.Setenv("UCX_TLS", c.tls)
			from, into := arena(t, c.n*stride), arena(t, c.n*row+row)
			r, err := OpenRows(o, from, into, row, stride)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if r.Count() != c.n {
				t.Errorf("%d rows, want %d", r.Count(), c.n)
			}
			want := make([]byte, len(into))
			for round := range 3 {
				for i := range from {
					from[i] = byte(i*7 + i/stride + round)
				}
				for i := range c.n {
					copy(want[i*row:], from[i*stride:i*stride+row])
				}
				if err := r.Read(); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(into, want) {
					t.Fatalf("round %d: other bytes came", round)
				}
			}
		})
	}
}

// TestRowsRefused: what cannot be read is refused, or says that it failed, and leaves nothing behind.
func TestRowsRefused(t *testing.T) {
	o := pretend(t)
	from, into := arena(t, 1<<16), arena(t, 1<<16)
	for name, c := range map[string]struct {
		o           Options
		from, into  []byte
		row, stride int64
		fault       string
		want        error
	}{
		"no options":     {Options{}, from, into, 256, 512, "", ErrConfig},
		"no row":         {o, from, into, 0, 512, "", ErrConfig},
		"not apart":      {o, from, into, 512, 512, "", ErrConfig},
		"no memory":      {o, nil, into, 256, 512, "", ErrConfig},
		"no room":        {o, from, into[:100], 256, 512, "", ErrConfig},
		"no library":     {Options{Library: "/nowhere/" + soname, Backend: DefaultBackend}, from, into, 256, 512, "", ErrLibrary},
		"no agent":       {o, from, into, 256, 512, "no-agent", ErrCall},
		"no metadata":    {o, from, into, 256, 512, "no-metadata", ErrCall},
		"not its memory": {o, from, into, 256, 512, "bad-load", ErrMetadata},
		"not made":       {o, from, into, 256, 512, "bad-make", ErrCall},
		"fails":          {o, from, into, 256, 512, "fails", ErrCall},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(fake.Env, c.fault)
			r, err := OpenRows(c.o, c.from, c.into, c.row, c.stride)
			if err == nil {
				defer r.Close()
				err = r.Read()
			}
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}
