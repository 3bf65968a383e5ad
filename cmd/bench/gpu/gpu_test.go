//go:build cgo

package gpu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/cmd/bench"
	"github.com/batonkv/baton/kernels/cuda/cudatest"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer/mover"
)

// TestMain makes the test binary the mover and the owners.
func TestMain(m *testing.M) {
	var err error
	switch {
	case slices.Equal(os.Args[1:], []string{"mover"}):
		err = mover.Serve(context.Background(), lifeline.FirstExtra)
	case slices.Equal(os.Args[1:], []string{"bench", "gpu", "owner"}):
		err = Own()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Every row runs, between processes, on a driver without a GPU, and leaves nothing behind.
func TestRows(t *testing.T) {
	lib := cudatest.Library(t)
	t.Setenv("LD_LIBRARY_PATH", filepath.Dir(lib))
	f := cudatest.Loaded(t, lib)
	b, err := os.ReadFile("testdata/rows.txt")
	if err != nil {
		t.Fatal(err)
	}
	wants := strings.Split(string(b), "\n\n")
	for i, o := range []Options{{}, {Variants: true}, {Only: []string{"gpu/one", "gpu/frag"}}, {Every: time.Millisecond, For: 20 * time.Millisecond, Tokens: 1024}} {
		saved, names := 0, []string{}
		o.Rounds, o.Binary, o.Shrink, o.Driver = 1, os.Args[0], 64, lib
		o.Progress = func(what string) { t.Log(what) }
		o.Save = func(r bench.Report) error { saved = len(r.Rows); return nil }
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if saved != len(r.Rows) || r.Binary == "" {
			t.Errorf("%d rows, %d saved, binary %q", len(r.Rows), saved, r.Binary)
		}
		for _, x := range r.Rows {
			names = append(names, x.Name)
			if len(x.Samples) == 0 {
				t.Errorf("%s has no samples", x.Name)
			}
		}
		if want := strings.Fields(wants[i]); !slices.Equal(names, want) {
			t.Errorf("rows:\n%s\nwant:\n%s", strings.Join(names, "\n"), strings.Join(want, "\n"))
		}
	}
	if l := f.Leaks(); l != (cudatest.Counts{}) {
		t.Errorf("left behind: %+v", l)
	}
}
