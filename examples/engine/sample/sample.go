// Package sample chooses tokens: greedily or by a seeded draw, with stop words and
// limits. It is pure: the k-th token of an answer hangs on the logits, the parameters,
// the number of the answer and k alone, so an answer goes on exactly wherever those are
// known. Packet is how they travel. The package knows neither models nor requests.
package sample

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrParams: no answer can be sampled so.
var ErrParams = errors.New("sample: bad parameters")

// Limits of Params.
const (
	MaxAnswers   = 64
	MaxStops     = 16
	MaxStopToken = 64 // tokens of one stop word
)

// Params is how a request samples. The zero Params is greedy, one answer.
type Params struct {
	Seed        uint64  `json:"seed,omitempty"`
	Temperature float32 `json:"temperature,omitempty"` // 0: greedy, whatever the others say
	TopK        int32   `json:"top_k,omitempty"`       // only the so many likeliest tokens; 0: all
	TopP        float32 `json:"top_p,omitempty"`       // only the likeliest tokens that together have this probability; 0: all
	// Answers is n: how many answers the prompt gets. Each is a stream of its own. 0: 1.
	Answers  int32 `json:"n,omitempty"`
	Logprobs bool  `json:"logprobs,omitempty"` // tell each token's
	// Stop are words, as tokens, after which an answer ends. The prompt does not count.
	Stop [][]int32 `json:"stop,omitempty"`
	// MinTokens come before the model's end of text, which is not chosen earlier, or a stop
	// word ends an answer.
	MinTokens int32 `json:"min_tokens,omitempty"`
	IgnoreEOS bool  `json:"ignore_eos,omitempty"` // the model's end of text ends nothing
}

// MaxMinTokens bounds Params.MinTokens.
const MaxMinTokens = 1 << 12

// IsZero is whether p is the zero Params.
func (p Params) IsZero() bool {
	return p.Seed == 0 && p.Temperature == 0 && p.TopK == 0 && p.TopP == 0 && p.Answers == 0 && !p.Logprobs && len(p.Stop) == 0 &&
		p.MinTokens == 0 && !p.IgnoreEOS
}

// Check reports the first parameter that is out of its range.
func (p Params) Check() error {
	var why string
	switch t := float64(p.Temperature); {
	case !(t >= 0 && t <= 100):
		why = fmt.Sprintf("temperature %v: want 0 to 100", t)
	case p.TopK < 0:
		why = fmt.Sprintf("top_k %d: want 0 or more", p.TopK)
	case !(p.TopP >= 0 && p.TopP <= 1):
		why = fmt.Sprintf("top_p %v: want 0 to 1", p.TopP)
	case p.Answers < 0 || p.Answers > MaxAnswers:
		why = fmt.Sprintf("n %d: want 0 to %d", p.Answers, MaxAnswers)
	case p.MinTokens < 0 || p.MinTokens > MaxMinTokens:
		why = fmt.Sprintf("min_tokens %d: want 0 to %d", p.MinTokens, MaxMinTokens)
	case len(p.Stop) > MaxStops:
		why = fmt.Sprintf("%d stop words, at most %d", len(p.Stop), MaxStops)
	}
	for _, w := range p.Stop {
		if why == "" && (len(w) < 1 || len(w) > MaxStopToken) {
			why = fmt.Sprintf("a stop word of %d tokens: want 1 to %d", len(w), MaxStopToken)
		}
	}
	if why != "" {
		return fmt.Errorf("%w: %s", ErrParams, why)
	}
	return nil
}

// Token is a token with the natural logarithm of its probability under the model's
// logits, whatever temperature and cuts it was drawn with.
type Token struct {
	ID      int32
	Logprob float32
}

// Pick chooses the token with number count, from 0, of an answer.
func (p Params) Pick(logits []float32, answer, count int32) Token {
	return p.pick(logits, answer, count, -1)
}

// pick is Pick of all tokens but never, if there are others.
func (p Params) pick(logits []float32, answer, count, never int32) Token {
	id := p.draw(logits, answer, count, never)
	return Token{ID: id, Logprob: logprob(logits, id)}
}

// draw takes the token at a uniform point of what temperature and cuts leave.
func (p Params) draw(logits []float32, answer, count, never int32) int32 {
	ids := make([]int32, 0, len(logits))
	for i := range int32(len(logits)) {
		if i != never || len(logits) == 1 {
			ids = append(ids, i)
		}
	}
	// Of equal logits the lower id comes first: the order is one.
	likelier := func(a, b int32) int { return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b)) }
	if p.Temperature == 0 {
		return slices.MinFunc(ids, likelier)
	}
	slices.SortFunc(ids, likelier)
	if p.TopK > 0 {
		ids = ids[:min(len(ids), int(p.TopK))]
	}
	weights, total := make([]float64, len(ids)), 0.0
	for i, id := range ids {
		weights[i] = math.Exp(float64(logits[id]-logits[ids[0]]) / float64(p.Temperature))
		total += weights[i]
	}
	if p.TopP > 0 {
		weights, total = nucleus(weights, total*float64(p.TopP))
	}
	at := uniform(p.Seed, answer, count) * total
	for i, w := range weights {
		if at -= w; at < 0 {
			return ids[i]
		}
	}
	return ids[len(weights)-1]
}

// nucleus is the shortest head of weights that adds up to at least want, and its sum.
func nucleus(weights []float64, want float64) ([]float64, float64) {
	sum := 0.0
	for i, w := range weights {
		if sum += w; sum >= want {
			return weights[:i+1], sum
		}
	}
	return weights, sum
}

func logprob(logits []float32, id int32) float32 {
	top, total := float64(slices.Max(logits)), 0.0
	for _, v := range logits {
		total += math.Exp(float64(v) - top)
	}
	return float32(min(float64(logits[id])-top-math.Log(total), 0))
}

// uniform is a number in [0, 1) that hangs on its arguments alone.
func uniform(seed uint64, answer, count int32) float64 {
	x := mix(mix(mix(seed)+uint64(uint32(answer))) + uint64(uint32(count)))
	return float64(x>>11) / (1 << 53)
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
