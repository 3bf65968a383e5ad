package sample_test

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/examples/engine/sample"
)

// logits of probabilities 0.5, 0.25, 0.125, 0.125, out of order.
var logits = []float32{float32(math.Log(0.125)), float32(math.Log(0.5)), float32(math.Log(0.125)), float32(math.Log(0.25))}

func TestPickFollowsTheDistribution(t *testing.T) {
	for name, c := range map[string]struct {
		p    sample.Params
		want []float64 // probability of each token
	}{
		"plain":           {sample.Params{Temperature: 1}, []float64{0.125, 0.5, 0.125, 0.25}},
		"greedy":          {sample.Params{TopK: 3}, []float64{0, 1, 0, 0}},
		"cold":            {sample.Params{Temperature: 0.5}, []float64{1. / 22, 16. / 22, 1. / 22, 4. / 22}},
		"top 1":           {sample.Params{Temperature: 1, TopK: 1}, []float64{0, 1, 0, 0}},
		"top 3, low id":   {sample.Params{Temperature: 1, TopK: 3}, []float64{1. / 7, 4. / 7, 0, 2. / 7}},
		"top p":           {sample.Params{Temperature: 1, TopP: 0.7}, []float64{0, 2. / 3, 0, 1. / 3}},
		"top p of a hair": {sample.Params{Temperature: 1, TopP: 1e-9}, []float64{0, 1, 0, 0}},
		"both":            {sample.Params{Temperature: 1, TopK: 2, TopP: 0.5}, []float64{0, 1, 0, 0}},
	} {
		const n = 20000
		got := make([]float64, len(logits))
		for i := range int32(n) {
			p := c.p
			p.Seed = 3
			tok := p.Pick(logits, i%4, i/4)
			got[tok.ID]++
			if math.Abs(float64(tok.Logprob-logits[tok.ID])) > 1e-6 {
				t.Fatalf("%s: logprob %v of token %d", name, tok.Logprob, tok.ID)
			}
		}
		for id, want := range c.want {
			// Five standard deviations; what cannot be must not be.
			if d := math.Abs(got[id] - want*n); d > 5*math.Sqrt(n*want*(1-want)) {
				t.Errorf("%s: token %d came %v times of %d, want %v", name, id, got[id], n, want*n)
			}
		}
	}
}

// TestPickHangsOnItsArgumentsAlone: an answer goes on the same wherever it goes on, and
// seeds, answers and positions are streams of their own.
func TestPickHangsOnItsArgumentsAlone(t *testing.T) {
	flat := make([]float32, 1<<16)
	seen := map[int32]bool{}
	for seed := range uint64(4) {
		for answer := range int32(4) {
			for count := range int32(4) {
				p := sample.Params{Seed: seed, Temperature: 1}
				a, b := p.Pick(flat, answer, count), p.Pick(flat, answer, count)
				if a != b {
					t.Fatal("two draws of the same token differ")
				}
				seen[a.ID] = true
			}
		}
	}
	if len(seen) < 60 {
		t.Errorf("64 draws gave %d tokens of 65536", len(seen))
	}
}

func TestGreedyTakesTheLowestOfEquals(t *testing.T) {
	if got := (sample.Params{}).Pick([]float32{1, 4, 4, 2}, 0, 0).ID; got != 1 {
		t.Error(got)
	}
}

func TestAnswerEnds(t *testing.T) {
	const eos = 9
	for name, c := range map[string]struct {
		stop   [][]int32
		limit  int32
		tokens []int32
		why    sample.Reason
	}{
		"limit":             {nil, 3, []int32{1, 2, 3}, sample.Length},
		"end of text":       {nil, 3, []int32{1, eos}, sample.EOS},
		"at the limit":      {nil, 2, []int32{1, eos}, sample.EOS},
		"word":              {[][]int32{{2, 3}}, 9, []int32{1, 2, 3}, sample.Stop},
		"word at the limit": {[][]int32{{2, 3}}, 3, []int32{1, 2, 3}, sample.Stop},
		"first token":       {[][]int32{{5}}, 9, []int32{5}, sample.Stop},
		"begins anew":       {[][]int32{{1, 1, 2}}, 9, []int32{1, 1, 1, 2}, sample.Stop},
		"shorter of two":    {[][]int32{{7, 2, 3, 4}, {2, 3}}, 9, []int32{7, 2, 3}, sample.Stop},
		"goes on":           {[][]int32{{1, 2, 3}}, 9, []int32{2, 3, 1, 2}, ""},
	} {
		a := sample.NewAnswer(sample.Params{Stop: c.stop}, 0, c.limit, eos)
		for i, tok := range c.tokens {
			why := a.Add(tok)
			if last := i == len(c.tokens)-1; last && why != c.why || !last && why != "" {
				t.Errorf("%s: token %d ends with %q, want %q at the last", name, i, why, c.why)
			}
		}
		if want := c.limit - int32(len(c.tokens)); a.Left() != want {
			t.Errorf("%s: %d left, want %d", name, a.Left(), want)
		}
	}
}

// TestLeastTokens: before MinTokens the end of text is not chosen, and no word ends the answer;
// nor does the end of text where it is ignored.
func TestLeastTokens(t *testing.T) {
	logits := []float32{1, 2, 9} // 2 is the end of text
	a := sample.NewAnswer(sample.Params{MinTokens: 2, Stop: [][]int32{{1}}}, 0, 9, 2)
	for n, want := range []sample.Token{{ID: 1}, {ID: 1}, {ID: 2}} {
		got := a.Pick(logits)
		if why := a.Add(1); got.ID != want.ID || why != map[int]sample.Reason{0: "", 1: sample.Stop, 2: sample.Stop}[n] {
			t.Errorf("token %d: %d, ends with %q", n, got.ID, why)
		}
	}
	a = sample.NewAnswer(sample.Params{MinTokens: 2, IgnoreEOS: true}, 0, 3, 2)
	for n, want := range []sample.Reason{"", "", sample.Length} {
		got := a.Pick(logits).ID
		if why := a.Add(got); got != 2 || why != want {
			t.Errorf("ignored: token %d: %d, ends with %q", n, got, why)
		}
	}
	if got := sample.NewAnswer(sample.Params{MinTokens: 1}, 0, 3, 0).Pick([]float32{1}).ID; got != 0 {
		t.Errorf("of one token %d was chosen", got)
	}
}

func TestParamsCheck(t *testing.T) {
	nan := float32(math.NaN())
	for _, p := range []sample.Params{{Temperature: -1}, {Temperature: nan}, {Temperature: 101}, {TopK: -1}, {TopP: 2}, {TopP: nan},
		{Answers: -1}, {MinTokens: -1}, {MinTokens: sample.MaxMinTokens + 1}, {Answers: sample.MaxAnswers + 1}, {Stop: [][]int32{{}}}, {Stop: make([][]int32, sample.MaxStops+1)},
		{Stop: [][]int32{make([]int32, sample.MaxStopToken+1)}}} {
		if err := p.Check(); !errors.Is(err, sample.ErrParams) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

const vocab = 258

func packets() *rapid.Generator[sample.Packet] {
	return rapid.Custom(func(t *rapid.T) sample.Packet {
		tokens := func(lo, hi int) []int32 {
			if n := rapid.IntRange(lo, hi).Draw(t, "n"); n > 0 {
				return rapid.SliceOfN(rapid.Int32Range(0, vocab-1), n, n).Draw(t, "tokens")
			}
			return nil
		}
		p := sample.Packet{Params: sample.Params{Seed: rapid.Uint64().Draw(t, "seed"), Temperature: rapid.Float32Range(0, 100).Draw(t, "t"),
			TopK: rapid.Int32Min(0).Draw(t, "k"), TopP: rapid.Float32Range(0, 1).Draw(t, "p"), Logprobs: rapid.Bool().Draw(t, "logprobs"),
			MinTokens: rapid.Int32Range(0, sample.MaxMinTokens).Draw(t, "min"), IgnoreEOS: rapid.Bool().Draw(t, "ignore")},
			Last: rapid.Int32Range(-1, vocab-1).Draw(t, "last")}
		for range rapid.IntRange(0, sample.MaxStops).Draw(t, "stops") {
			p.Params.Stop = append(p.Params.Stop, tokens(1, sample.MaxStopToken))
		}
		for range rapid.IntRange(0, sample.MaxAnswers-1).Draw(t, "others") {
			p.Others = append(p.Others, sample.First{Proposed: tokens(0, sample.MaxProposed),
				Token: sample.Token{ID: rapid.Int32Range(0, vocab-1).Draw(t, "id"), Logprob: rapid.Float32Range(-100, 0).Draw(t, "l")}})
		}
		if n := int32(len(p.Others)); n > 0 {
			p.Params.Answers = n + 1
		}
		return p
	})
}

// TestPacketRound: a packet comes out as it went in, and no part of one is one.
func TestPacketRound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := packets().Draw(t, "packet")
		b := want.Append(nil)
		got, err := sample.ParsePacket(b, vocab)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v %v, want %+v", got, err, want)
		}
		if n := rapid.IntRange(1, len(b)-1).Draw(t, "cut"); true {
			if _, err := sample.ParsePacket(b[:n], vocab); !errors.Is(err, sample.ErrPacket) {
				t.Fatalf("%d of %d bytes: %v", n, len(b), err)
			}
		}
	})
}

func TestPacketRefusals(t *testing.T) {
	good := sample.Packet{Params: sample.Params{Temperature: 1, Answers: 2, Stop: [][]int32{{5}}}, Others: []sample.First{{Token: sample.Token{ID: 7, Logprob: -1}}}}
	bytesOf := func(change func(*sample.Packet)) []byte {
		p := good
		p.Params.Stop, p.Others = [][]int32{{5}}, slices.Clone(good.Others)
		change(&p)
		return p.Append(nil)
	}
	whole := bytesOf(func(*sample.Packet) {})
	if _, err := sample.ParsePacket(whole, vocab); err != nil {
		t.Fatal(err)
	}
	later := slices.Clone(whole)
	later[0]++
	flags := slices.Clone(whole)
	flags[1] = 0x80
	least := bytesOf(func(p *sample.Packet) { p.Params.Stop, p.Params.MinTokens = nil, 1 })
	least[2+8+4+4+4+4+1] = 0 // the least number, behind no stop words
	for name, b := range map[string][]byte{"a later version": later, "unknown flags": flags, "a least number that is none": least, "bytes behind": append(slices.Clone(whole), 0),
		"a token outside":      bytesOf(func(p *sample.Packet) { p.Others[0].Token.ID = vocab }),
		"a negative token":     bytesOf(func(p *sample.Packet) { p.Params.Stop[0][0] = -1 }),
		"a logprob above 0":    bytesOf(func(p *sample.Packet) { p.Others[0].Token.Logprob = 0.5 }),
		"no number":            bytesOf(func(p *sample.Packet) { p.Others[0].Token.Logprob = float32(math.NaN()) }),
		"an empty word":        bytesOf(func(p *sample.Packet) { p.Params.Stop[0] = nil }),
		"a hot sampler":        bytesOf(func(p *sample.Packet) { p.Params.Temperature = float32(math.Inf(1)) }),
		"a last token outside": bytesOf(func(p *sample.Packet) { p.Last = vocab }),
		"many words":           bytesOf(func(p *sample.Packet) { p.Params.Stop = slices.Repeat([][]int32{{1}}, sample.MaxStops+1) }),
		"many proposals":       bytesOf(func(p *sample.Packet) { p.Others[0].Proposed = make([]int32, sample.MaxProposed+1) }),
		"many answers":         bytesOf(func(p *sample.Packet) { p.Others = make([]sample.First, sample.MaxAnswers) })} {
		if _, err := sample.ParsePacket(b, vocab); !errors.Is(err, sample.ErrPacket) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzPacket: no bytes panic, and what is taken is written again as it was.
func FuzzPacket(f *testing.F) {
	f.Add([]byte{})
	f.Add(sample.Packet{}.Append(nil))
	f.Add(sample.Packet{Params: sample.Params{Seed: 9, Temperature: 1, TopP: 0.5, Answers: 2, Logprobs: true, Stop: [][]int32{{1, 2}}, MinTokens: 3, IgnoreEOS: true},
		Others: []sample.First{{Token: sample.Token{ID: 4, Logprob: -2}, Proposed: []int32{1, 2, 3}}}}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := sample.ParsePacket(b, vocab)
		if err != nil || len(b) == 0 {
			return
		}
		if again := p.Append(nil); !bytes.Equal(again, b) || p.Params.Check() != nil {
			t.Fatalf("%x is written again as %x", b, again)
		}
	})
}
