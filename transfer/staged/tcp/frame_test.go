package tcp

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/batonkv/baton/transfer/staged/internal/offers"
)

func FuzzAsk(f *testing.F) {
	f.Add(ask{1, 2, 3}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != askBytes {
			return
		}
		a, err := decodeAsk((*[askBytes]byte)(b))
		if err == nil && !bytes.Equal(a.append(nil), b) {
			t.Errorf("%x became %+v", b, a)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(appendAnswer(nil, offers.Good, 64), int64(64))
	f.Add(appendAnswer(nil, offers.Closed, 0), int64(64))
	f.Fuzz(func(t *testing.T, b []byte, want int64) {
		refused, err := readAnswer(bytes.NewReader(b), want)
		short := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		switch {
		case short != (len(b) < answerBytes):
			t.Errorf("%d bytes: %v", len(b), err)
		case err == nil && refused == nil && !bytes.Equal(b[:answerBytes], appendAnswer(nil, offers.Good, want)):
			t.Errorf("%x is taken for %d bytes", b, want)
		}
	})
}
