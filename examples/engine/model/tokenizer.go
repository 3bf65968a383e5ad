package model

// Encode is the byte-level tokenizer: one token a byte.
func Encode(text string) []int32 {
	out := make([]int32, len(text))
	for i := range len(text) {
		out[i] = int32(text[i])
	}
	return out
}

// Decode is the inverse of Encode; BOS and EOS have no text.
func Decode(tokens []int32) string {
	b := make([]byte, 0, len(tokens))
	for _, t := range tokens {
		if t >= 0 && t < BOS {
			b = append(b, byte(t))
		}
	}
	return string(b)
}
