package sample

import "slices"

// Reason is why an answer ended; "": it goes on.
type Reason string

const (
	Length Reason = "length" // the limit was reached
	EOS    Reason = "eos"    // the model ended the text
	Stop   Reason = "stop"   // a stop word was completed
)

// Answer is one answer as it grows.
type Answer struct {
	params Params
	number int32 // which of the request's answers
	limit  int32 // tokens at most
	eos    int32
	count  int32   // tokens so far
	tail   []int32 // the last of them, as many as the longest stop word may need
}

// NewAnswer starts answer number, from 0, of at most limit tokens; eos is the model's end
// of text.
func NewAnswer(p Params, number, limit, eos int32) *Answer {
	return &Answer{params: p, number: number, limit: limit, eos: eos}
}

// Pick chooses the answer's next token. It does not add it: a draft is compared first.
func (a *Answer) Pick(logits []float32) Token {
	never := int32(-1)
	if a.count < a.params.MinTokens && !a.params.IgnoreEOS {
		never = a.eos
	}
	return a.params.pick(logits, a.number, a.count, never)
}

// Left is how many tokens may still come.
func (a *Answer) Left() int32 { return a.limit - a.count }

// Add appends a token, which the answer keeps even if it completes a stop word, and says
// whether the answer ends with it.
func (a *Answer) Add(token int32) Reason {
	a.count++
	keep := 0
	for _, w := range a.params.Stop {
		keep = max(keep, len(w))
	}
	if a.tail = append(a.tail, token); len(a.tail) > keep {
		a.tail = a.tail[len(a.tail)-keep:]
	}
	early := a.count < a.params.MinTokens
	switch {
	case !early && token == a.eos && !a.params.IgnoreEOS:
		return EOS
	case !early && slices.ContainsFunc(a.params.Stop, func(w []int32) bool {
		return len(a.tail) >= len(w) && slices.Equal(a.tail[len(a.tail)-len(w):], w)
	}):
		return Stop
	case a.count >= a.limit:
		return Length
	}
	return ""
}
