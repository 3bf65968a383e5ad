package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/bench/measure"
	"github.com/batonkv/baton/transfer/staged/nixl"
)

// headPrompt is as long as longPrompt, of the same model, whose engine keeps keys apart from
// values: a head has 256 bytes of a token.
var headPrompt = loadShape{layers: 64, units: 8, elems: 128, block: 64, blocks: 64, tokens: 4096}

// stagingRows measures hand-offs to readers that need a part of each token's row. In turn
// with each, NIXL alone brings one reader its rows, each by a descriptor of its own.
func stagingRows(ctx context.Context, o Options) ([]Result, error) {
	if _, err := nixl.DefaultOptions().Found(ctx); err != nil {
		o.Progress("staging-rows: nothing over NIXL: " + err.Error())
		return nil, nil
	}
	var cases []stagingCase
	for _, tp := range []int32{8, 2} {
		for _, name := range []string{"nixl", "nixl-tcp"} {
			cases = append(cases, stagingCase{fmt.Sprintf("rows-tp%d-%s", tp, name), "nixl", headPrompt, tp, "x of a NIXL descriptor a row", rowsNIXL, 10})
		}
	}
	return measureAll(ctx, o, cases)
}

// rowsNIXL reads what the first reader gets of the request, between two agents of this process.
func rowsNIXL(ctx context.Context, _ Options, p *loads) (flat, error) {
	lib, err := nixl.DefaultOptions().Found(ctx)
	if err != nil {
		return flat{}, err
	}
	src, readers := p.src[0], int64(len(p.dst))
	stride := int64(src.units) * int64(src.elems) * 2
	row := stride / readers
	fd, mem, err := measure.Memory(int64(len(src.mem)) / readers)
	if err != nil {
		return flat{}, err
	}
	free := func() error { return errors.Join(unix.Munmap(mem), unix.Close(fd)) }
	r, err := nixl.OpenRows(lib, src.mem, mem, row, stride)
	if err != nil {
		return flat{}, errors.Join(err, free())
	}
	move := func() (time.Duration, error) {
		began := time.Now()
		err := r.Read()
		return time.Since(began), err
	}
	return flat{int64(r.Count()) * row, fmt.Sprintf("one reader's %d rows of %d B at", r.Count(), row) + " %.2f", move, func() error {
		r.Close()
		return free()
	}}, nil
}
