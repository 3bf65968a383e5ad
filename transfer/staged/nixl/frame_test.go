package nixl

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged/internal/offers"
)

func FuzzHello(f *testing.F) {
	f.Add(appendHello(nil, 7))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != helloBytes {
			return
		}
		of, why, err := decodeHello((*[helloBytes]byte)(b))
		if err == nil && why == offers.Good && !bytes.Equal(appendHello(nil, of), b) {
			t.Errorf("%x is for %d", b, of)
		}
	})
}

func FuzzWelcome(f *testing.F) {
	f.Add(welcome{base: 1 << 40, chunk: 4096, chunks: 3, metadata: []byte("md")}.append(nil, offers.Good))
	f.Add(welcome{}.append(nil, offers.Other))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := readWelcome(bytes.NewReader(b))
		if err == nil && !bytes.HasPrefix(b, m.append(nil, offers.Good)) {
			t.Errorf("%x became %+v", b, m)
		}
	})
}

func FuzzAsk(f *testing.F) {
	f.Add(ask{1, 2}.append(nil))
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
	f.Add(appendAnswer(nil, offers.Good, 63))
	f.Add(appendAnswer(nil, offers.Closed, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != answerBytes {
			return
		}
		c, why, err := decodeAnswer((*[answerBytes]byte)(b), 64)
		if err == nil && (!bytes.Equal(appendAnswer(nil, why, c), b) || c < 0 || c >= 64) {
			t.Errorf("%x became chunk %d, %d", b, c, why)
		}
	})
}

// TestWelcome: what a peer says of its memory is checked before it is used, and bounded
// before it is allocated.
func TestWelcome(t *testing.T) {
	fine := welcome{base: 1 << 40, chunk: 4096, chunks: 3, metadata: []byte("md")}
	if m, err := readWelcome(bytes.NewReader(fine.append(nil, offers.Good))); err != nil || !reflect.DeepEqual(m, fine) {
		t.Fatalf("%+v, %v", m, err)
	}
	long := be.AppendUint32(fine.append(nil, offers.Good)[:welcomeBytes-4], maxMetadata+1)
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"oversized metadata": {long, ErrMetadata},
		"no metadata":        {welcome{base: 1, chunk: 4096, chunks: 1}.append(nil, offers.Good), ErrMetadata},
		"chunks of nothing":  {welcome{base: 1, chunks: 1, metadata: []byte("x")}.append(nil, offers.Good), ErrMetadata},
		"endless chunks":     {welcome{base: 1, chunk: maxArena + 1, chunks: 1, metadata: []byte("x")}.append(nil, offers.Good), ErrMetadata},
		"no chunks":          {welcome{base: 1, chunk: 4096, metadata: []byte("x")}.append(nil, offers.Good), ErrMetadata},
		"too many chunks":    {welcome{base: 1, chunk: 4096, chunks: maxChunks + 1, metadata: []byte("x")}.append(nil, offers.Good), ErrMetadata},
		"past the end":       {welcome{base: 1<<64 - 4096, chunk: 4096, chunks: 2, metadata: []byte("x")}.append(nil, offers.Good), ErrMetadata},
		"another mover":      {welcome{}.append(nil, offers.Other), transfer.ErrPeer},
		"version skew":       {welcome{}.append(nil, offers.Skew), transfer.ErrPeer},
		"unknown status":     {welcome{}.append(nil, 99), ErrFrame},
		"cut short":          {fine.append(nil, offers.Good)[:welcomeBytes+1], io.ErrUnexpectedEOF},
		"garbage":            {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n    "), ErrFrame},
	} {
		if _, err := readWelcome(bytes.NewReader(c.b)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
