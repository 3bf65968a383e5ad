package tp

import (
	"bytes"
	"testing"
)

func FuzzFrame(f *testing.F) {
	var b bytes.Buffer
	_ = writeFrame(&b, frameStep, []byte("step"))
	f.Add(b.Bytes())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		kind, got, err := readFrame(bytes.NewReader(in), nil)
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := writeFrame(&again, kind, got); err != nil || !bytes.Equal(again.Bytes(), in[:again.Len()]) {
			t.Fatalf("%x reads as %d %x: %v", in, kind, got, err)
		}
	})
}
