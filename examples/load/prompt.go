package load

import (
	"encoding/json"
	"fmt"
)

// MaxTokens bounds a prompt with what is decoded behind it.
const MaxTokens = 1 << 14

// Prompt says what the tokens of a request are, and by them all of its state. It
// travels in the resume packet, so that who decodes knows what must have arrived.
type Prompt struct {
	Version uint64 // of the weights that made the state, as who prefills says
	Prefix  uint64 // seed of the first Shared tokens, which several prompts may have
	Shared  int32
	Tail    uint64 // seed of the others, and of what is decoded
	Len     int32
	Steps   int32 // tokens that are decoded
}

// Check reports a prompt out of bounds.
func (p Prompt) Check() error {
	if p.Len < 1 || p.Shared < 0 || p.Shared > p.Len || p.Steps < 0 || p.Len > MaxTokens || p.Steps > MaxTokens-p.Len {
		return fmt.Errorf("%w: prompt of %d tokens, %d shared, %d steps", ErrConfig, p.Len, p.Shared, p.Steps)
	}
	return nil
}

// Token is the token at position i; positions from Len on are decoded.
func (p Prompt) Token(i int32) int32 {
	seed := p.Tail
	if i < p.Shared {
		seed = p.Prefix
	}
	return int32(mix(seed^mix(uint64(i))) & 0x7fff)
}

// Tokens are the prompt's.
func (p Prompt) Tokens() []int32 {
	out := make([]int32, p.Len)
	for i := range out {
		out[i] = p.Token(int32(i))
	}
	return out
}

// chain gives each position a number that hangs on the weights and on every token
// before it, as real state does: chain[i] is of the first i tokens.
func (p Prompt) chain(n int32) []uint64 {
	c := make([]uint64, 1, n+1)
	c[0] = mix(p.Version)
	for i := range n {
		c = append(c, mix(c[i]+0x9e3779b97f4a7c15*uint64(p.Token(i)+1)))
	}
	return c
}

// pack is the prompt as the sampler state of a resume packet.
func (p Prompt) pack() []byte {
	b, err := json.Marshal(p)
	if err != nil { // numbers alone
		panic(err)
	}
	return b
}

func unpack(b []byte) (Prompt, error) {
	var p Prompt
	if err := json.Unmarshal(b, &p); err != nil {
		return Prompt{}, fmt.Errorf("%w: the resume packet's prompt: %w", ErrConfig, err)
	}
	return p, p.Check()
}

// mix is a bijection of 64 bits in which every input bit moves every output bit.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
