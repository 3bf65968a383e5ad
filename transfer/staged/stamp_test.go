package staged

import (
	"bytes"
	"errors"
	"math"
	"testing"
)

func stamped(t testing.TB, s Stamp, chunk []byte, body int64) {
	t.Helper()
	if err := s.WriteHead(chunk, body); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteTail(chunk, body); err != nil {
		t.Fatal(err)
	}
}

func TestStampTellsApart(t *testing.T) {
	s := Stamp{Job: Job{Handoff: [16]byte{1, 2, 15: 9}, Attempt: 3, Pair: 4}, Seq: 5, Offer: 6}
	other := func(f func(*Stamp)) Stamp { o := s; f(&o); return o }
	for name, o := range map[string]Stamp{
		"handoff": other(func(s *Stamp) { s.Job.Handoff[15]++ }),
		"attempt": other(func(s *Stamp) { s.Job.Attempt++ }),
		"pair":    other(func(s *Stamp) { s.Job.Pair++ }),
		"seq":     other(func(s *Stamp) { s.Seq++ }),
		"offer":   other(func(s *Stamp) { s.Offer += 1 << 40 }),
	} {
		chunk := make([]byte, 1024)
		stamped(t, s, chunk, 700)
		if b, err := s.Verify(chunk, 700); err != nil || len(b) != 700 {
			t.Fatalf("%s: own stamp: %v", name, err)
		}
		if _, err := o.Verify(chunk, 700); !errors.Is(err, ErrStamp) {
			t.Errorf("%s: the stamp of another: %v", name, err)
		}
		// a chunk that is torn between two packs: either end of the other
		if err := o.WriteTail(chunk, 700); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Verify(chunk, 700); !errors.Is(err, ErrStamp) {
			t.Errorf("%s: head of one, tail of another: %v", name, err)
		}
		stamped(t, s, chunk, 700)
		if err := o.WriteHead(chunk, 700); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Verify(chunk, 700); !errors.Is(err, ErrStamp) {
			t.Errorf("%s: tail of one, head of another: %v", name, err)
		}
	}
}

func TestStampSizes(t *testing.T) {
	for _, c := range []struct {
		chunk, body, want int64 // want -1: refused
	}{
		{0, 0, -1}, {127, 0, -1}, {128, 0, 128}, {192, 64, 192}, {192, 65, -1}, {192, 1, 192}, {191, 1, -1}, {1 << 40, 1<<40 - 128, 1 << 40},
		{math.MaxInt64, math.MaxInt64, -1}, {192, math.MaxInt64, -1}, {192, -1, -1}, {192, math.MinInt64, -1},
		{math.MinInt64, 0, -1}, {-1, 5, -1},
	} {
		n, err := ChunkBytes(c.chunk, c.body)
		if c.want < 0 && !errors.Is(err, ErrConfig) || c.want >= 0 && n != c.want {
			t.Errorf("ChunkBytes(%d, %d) = %d, %v, want %d", c.chunk, c.body, n, err, c.want)
		}
	}
	if BodyRoom(191) != 0 || BodyRoom(192) != 64 || BodyRoom(math.MaxInt64)%StampBytes != 0 {
		t.Error("BodyRoom")
	}
}

// FuzzStamp writes and reads stamps on any memory: nothing outside the descriptor is
// touched, what was written verifies, and no foreign bytes do.
func FuzzStamp(f *testing.F) {
	f.Add([]byte("seed"), int64(10), uint64(1), uint64(2), int32(3), uint32(4), 300)
	f.Add([]byte{}, int64(math.MaxInt64), uint64(0), uint64(0), int32(-1), uint32(0), 0)
	f.Add([]byte{0xff}, int64(-5), uint64(9), uint64(9), int32(9), uint32(9), 192)
	f.Fuzz(func(t *testing.T, fill []byte, body int64, offer, attempt uint64, seq int32, pair uint32, size int) {
		if size < 0 || size > 1<<12 {
			return
		}
		chunk := make([]byte, size)
		for i := 0; i < size && len(fill) > 0; i += copy(chunk[i:], fill) {
		}
		before := bytes.Clone(chunk)
		s := Stamp{Job: Job{Attempt: attempt, Pair: pair}, Seq: seq, Offer: offer}
		copy(s.Job.Handoff[:], fill)
		_, _ = s.Verify(chunk, body) // any memory may be asked about
		headErr, tailErr := s.WriteHead(chunk, body), s.WriteTail(chunk, body)
		n, err := ChunkBytes(int64(size), body)
		if (err == nil) != (headErr == nil) || (err == nil) != (tailErr == nil) {
			t.Fatal(err, headErr, tailErr)
		}
		if err != nil {
			if !bytes.Equal(before, chunk) {
				t.Fatal("refused, and yet written")
			}
			return
		}
		got, err := s.Verify(chunk, body)
		if err != nil || int64(len(got)) != body {
			t.Fatal(err, len(got))
		}
		if n > int64(size) || !bytes.Equal(chunk[n:], before[n:]) || !bytes.Equal(got, before[StampBytes:StampBytes+body]) {
			t.Fatal("touched what is not a stamp's")
		}
	})
}
