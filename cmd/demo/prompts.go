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

// minLong is the least length of the longest prompts, in tokens.
const minLong = 240

// prompts are those at which block arithmetic goes wrong if it can: one token, one
// less than a block, a block, one more, several blocks, several and a part. The last
// begins as the one before it, so that it moves its suffix alone. Prompts that would
// be empty are left out.
func prompts(block int32) []prompt {
	long := cut(60, max(minLong, 4*block+1))
	shared := append(slices.Clip(long[:4*block]), model.Encode(" How long does a hand-off take?")...)
	all := []prompt{
		{"one token", cut(0, 1)},
		{"block - 1", cut(10, block-1)},
		{"block", cut(20, block)},
		{"block + 1", cut(30, block+1)},
		{"three blocks", cut(40, 3*block)},
		{"long", long},
		{"shared prefix", shared},
	}
	return slices.DeleteFunc(all, func(p prompt) bool { return len(p.tokens) == 0 })
}

// blocks is how many blocks of a paged cache the prompts need, each with maxNew tokens
// of its answer, while the prefix of the one before is still cached.
func blocks(block, maxNew int32) int32 {
	var most int
	for _, p := range prompts(block) {
		most = max(most, len(p.tokens))
	}
	return 2 * ((int32(most)+maxNew)/block + 2)
}

// cut takes n bytes of the text from an offset on, around its end as often as needed.
func cut(from int, n int32) []int32 {
	return model.Encode(strings.Repeat(text, 2+int(n)/len(text))[from : from+int(n)])
}
