package demo

import (
	"fmt"
	"io"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/planview"
	"github.com/batonkv/baton/transfer/reshard"
)

// printPicture draws who pulled what from whom for one request, as the plan says it.
func (d *demo) printPicture(out io.Writer, r row) error {
	shards := func(g dev.Group) ([]layout.Shard, error) {
		sizes := model.Sizes{Blocks: d.opt.Dev.Blocks, Slots: d.opt.Dev.Slots, BlockTokens: d.opt.Dev.BlockTokens, Types: types(g)}
		return d.model.AllShards(split(g), sizes)
	}
	src, err := shards(r.src.Group)
	if err != nil {
		return err
	}
	dst, err := shards(r.dst.Group)
	if err != nil {
		return err
	}
	p, err := reshard.New(d.model.Desc().Model(), src, dst)
	if err != nil {
		return err
	}
	suffix := int32(len(r.prompt.tokens)) - r.answers[0].imported.Cached
	fmt.Fprintf(out, "\nwhat moved for %s, %d of its %d tokens:\n", r.label, suffix, len(r.prompt.tokens))
	for i, pair := range p.Pairs() {
		fmt.Fprintf(out, "  %s rank %d  ──%10s ──▶  %s rank %d\n", r.src.Name, pair.Src, planview.Size(p.Bytes(uint32(i), suffix)), r.dst.Name, pair.Dst)
	}
	return nil
}
