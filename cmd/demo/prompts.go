package demo

import (
	"slices"
	"strings"

	"github.com/batonkv/baton/examples/engine/model"
)

// prompt is one request of the demo.
type prompt struct {
	name   string
	tokens []int32
}

// text is what the prompts are cut from; a token is a byte.
const text = "The prefill engine has read the whole question, so the decode engine need not read it again. " +
	"Its keys, its values and its state travel once, are cut to fit, and the answer goes on as if one engine had done it all. " +
	"Whoever holds the baton runs; whoever has passed it on may rest, but not before the other has it firmly in hand."

// prompts are those at which block arithmetic goes wrong if it can: one token, one
// less than a block, a block, one more, several blocks, several and a part. The last
// begins as the one before it, so that it moves its suffix alone.
func prompts(block int32) []prompt {
	long := cut(60, 240)
	shared := append(slices.Clip(long[:4*block]), model.Encode(" How long does a hand-off take?")...)
	return []prompt{
		{"one token", cut(0, 1)},
		{"block - 1", cut(10, block-1)},
		{"block", cut(20, block)},
		{"block + 1", cut(30, block+1)},
		{"three blocks", cut(40, 3*block)},
		{"long", long},
		{"shared prefix", shared},
	}
}

// cut takes n bytes of the text from an offset on, around its end as often as needed.
func cut(from int, n int32) []int32 {
	return model.Encode(strings.Repeat(text, 2+int(n)/len(text))[from : from+int(n)])
}
