package sample

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrPacket: bytes that are no packet of this version.
var ErrPacket = errors.New("sample: bad resume packet")

// Packet is what decode needs of the sampler to go on with any of a prompt's answers. It
// travels as opaque bytes beside the first answer's tokens.
type Packet struct {
	Params Params
	Last   int32 // the prompt's last token, for engines that draft from pairs; -1: not told
	// Others are the first tokens of answers 1 and up; answer 0's travel in the open.
	Others []First
}

// First is how an answer begins.
type First struct {
	Token    Token
	Proposed []int32 // drafts of the tokens behind it
}

// MaxProposed bounds the drafts of one answer.
const MaxProposed = 16

// version is the first byte of a packet. A reader refuses what it does not know: a
// sampler that is half understood gives wrong tokens.
const version = 1

// Flags of a packet. flagMin says that the least number of tokens comes behind the stop words.
const (
	flagLogprobs = 1 << iota
	flagIgnoreEOS
	flagMin
	allFlags = 1<<iota - 1
)

// Append writes the packet behind b. The parameters passed Check, Others has one less
// than Params.Answers.
func (p Packet) Append(b []byte) []byte {
	le := binary.LittleEndian
	var flags byte
	if p.Params.Logprobs {
		flags |= flagLogprobs
	}
	if p.Params.IgnoreEOS {
		flags |= flagIgnoreEOS
	}
	if p.Params.MinTokens > 0 {
		flags |= flagMin
	}
	b = append(b, version, flags)
	b = le.AppendUint64(b, p.Params.Seed)
	b = le.AppendUint32(b, math.Float32bits(p.Params.Temperature))
	b = le.AppendUint32(b, uint32(p.Params.TopK))
	b = le.AppendUint32(b, math.Float32bits(p.Params.TopP))
	b = le.AppendUint32(b, uint32(p.Last))
	b = append(b, byte(len(p.Params.Stop)))
	for _, w := range p.Params.Stop {
		b = appendTokens(b, w)
	}
	if p.Params.MinTokens > 0 {
		b = le.AppendUint32(b, uint32(p.Params.MinTokens))
	}
	b = append(b, byte(len(p.Others)))
	for _, f := range p.Others {
		b = le.AppendUint32(le.AppendUint32(b, uint32(f.Token.ID)), math.Float32bits(f.Token.Logprob))
		b = appendTokens(b, f.Proposed)
	}
	return b
}

func appendTokens(b []byte, tokens []int32) []byte {
	b = append(b, byte(len(tokens)))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	return b
}

// ParsePacket reads a packet; no bytes are the packet of the zero Params. Tokens are below
// vocab, logprobs are finite and not positive.
func ParsePacket(b []byte, vocab int32) (Packet, error) {
	if len(b) == 0 {
		return Packet{Last: -1}, nil
	}
	r := reader{b: b, vocab: vocab}
	if v := r.byte(); v != version {
		return Packet{}, fmt.Errorf("%w: version %d, this engine reads %d", ErrPacket, v, version)
	}
	var p Packet
	flags := r.byte()
	r.check(flags&^allFlags == 0, "unknown flags")
	p.Params = Params{Logprobs: flags&flagLogprobs != 0, IgnoreEOS: flags&flagIgnoreEOS != 0, Seed: r.uint64(), Temperature: r.float(), TopK: int32(r.uint32()), TopP: r.float()}
	p.Last = int32(r.uint32())
	r.check(p.Last >= -1 && p.Last < vocab, "a last token outside the vocabulary")
	for range r.count("stop words", MaxStops) {
		p.Params.Stop = append(p.Params.Stop, r.tokens("tokens of a stop word", MaxStopToken))
	}
	if flags&flagMin != 0 {
		p.Params.MinTokens = int32(r.uint32())
		r.check(p.Params.MinTokens > 0, "no least number of tokens")
	}
	for range r.count("other answers", MaxAnswers-1) {
		f := First{Token: Token{ID: r.token(), Logprob: r.float()}, Proposed: r.tokens("proposals", MaxProposed)}
		r.check(ValidLogprob(f.Token.Logprob), "a logprob that is none")
		p.Others = append(p.Others, f)
	}
	r.check(len(r.b) == 0, "bytes behind its end")
	if n := int32(len(p.Others)); n > 0 {
		p.Params.Answers = n + 1
	}
	if r.err == nil {
		r.err = p.Params.Check()
	}
	if r.err != nil {
		return Packet{}, fmt.Errorf("%w: %w", ErrPacket, r.err)
	}
	return p, nil
}

// ValidLogprob is whether v may be the logarithm of a probability.
func ValidLogprob(v float32) bool { return v <= 0 && !math.IsInf(float64(v), 0) }

// reader takes a packet apart and keeps its first fault, after which it gives zeros.
type reader struct {
	b     []byte
	vocab int32
	err   error
}

func (r *reader) check(ok bool, why string) {
	if !ok && r.err == nil {
		r.err = errors.New(why)
	}
}

func (r *reader) take(n int) []byte {
	r.check(len(r.b) >= n, "it ends early")
	if r.err != nil {
		return make([]byte, n)
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) byte() byte     { return r.take(1)[0] }
func (r *reader) uint32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) uint64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }
func (r *reader) float() float32 { return math.Float32frombits(r.uint32()) }

func (r *reader) token() int32 {
	t := int32(r.uint32())
	r.check(t >= 0 && t < r.vocab, "a token outside the vocabulary")
	return t
}

// count is a list's length, 0 after a fault.
func (r *reader) count(what string, limit int) int {
	n := int(r.byte())
	r.check(n <= limit, fmt.Sprintf("%d %s, at most %d", n, what, limit))
	if r.err != nil {
		return 0
	}
	return n
}

func (r *reader) tokens(what string, limit int) (out []int32) {
	for range r.count(what, limit) {
		out = append(out, r.token())
	}
	return out
}
