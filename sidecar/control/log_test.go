package control

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/batonkv/baton/proto/control/v1"
)

// seen watches a closed log from from.
func seen(l *Log, from Cursor) (got []Notice) {
	for n, err := range l.Watch(context.Background(), from) {
		if err != nil {
			panic(err)
		}
		got = append(got, n)
	}
	return got
}

// From the newest on, the first notice says where that is, and nothing older is told.
func TestLogFromTheNewest(t *testing.T) {
	l := NewLog(9, 4)
	for range 10 {
		l.Append(Notice{Kind: Ready})
	}
	for n := range l.Watch(t.Context(), Newest) {
		if n.Kind == Gap {
			if n.Seq != 10 || n.Lost != 0 || n.After() != (Cursor{9, 11}) {
				t.Errorf("%+v", n)
			}
			l.Append(Notice{Kind: NotReady})
			continue
		}
		if n.Seq != 11 || n.Kind != NotReady {
			t.Errorf("%+v", n)
		}
		return
	}
	t.Error("nothing was told")
}

func TestLogTellsWhatIsLost(t *testing.T) {
	l := NewLog(9, 4)
	for range 10 {
		l.Append(Notice{Kind: Ready})
	}
	l.Close()
	for _, c := range []struct {
		from  uint64
		gap   bool
		seq   uint64 // of the gap
		lost  uint64
		first uint64 // number of the first notice after it; 0: none
	}{
		{from: 0, first: 7}, {from: 7, first: 7}, {from: 10, first: 10}, {from: 11},
		{from: 1, gap: true, seq: 6, lost: 6, first: 7},
		{from: 6, gap: true, seq: 6, lost: 1, first: 7},
		{from: 12, gap: true, seq: 6, lost: 0, first: 7},
	} {
		got := seen(l, Cursor{Seq: c.from})
		if c.gap {
			if len(got) == 0 || got[0].Kind != Gap || got[0].Seq != c.seq || got[0].Lost != c.lost {
				t.Errorf("from %d: got %+v, want a gap to %d of %d", c.from, got, c.seq, c.lost)
				continue
			}
			got = got[1:]
		}
		if c.first == 0 {
			if len(got) != 0 {
				t.Errorf("from %d: got %+v, want nothing", c.from, got)
			}
			continue
		}
		for i, n := range got {
			if n.Seq != c.first+uint64(i) || n.Kind != Ready {
				t.Errorf("from %d: notice %d is %+v", c.from, i, n)
			}
		}
		if last := got[len(got)-1].Seq; last != 10 {
			t.Errorf("from %d: ended at %d", c.from, last)
		}
	}
}

// A number of another process says nothing here: whatever it is, a gap comes first.
func TestLogOfAnotherProcess(t *testing.T) {
	l := NewLog(9, 4)
	for range 6 {
		l.Append(Notice{Kind: Ready})
	}
	l.Close()
	for _, from := range []Cursor{{8, 0}, {8, 1}, {8, 5}, {8, 7}, {8, 100}} {
		got := seen(l, from)
		if len(got) != 5 || got[0].Kind != Gap || got[0].Lost != 0 || got[0].Seq != 2 || got[1].Seq != 3 || got[4].Seq != 6 {
			t.Errorf("from %+v: %+v", from, got)
		}
		for _, n := range got {
			if n.Incarnation != 9 {
				t.Errorf("from %+v: %+v is of no process", from, n)
			}
		}
	}
	if got := seen(l, Cursor{9, 5}); len(got) != 2 || got[0].Seq != 5 || got[0].After() != (Cursor{9, 6}) {
		t.Errorf("of this process: %+v", got)
	}
	if got := seen(l, Cursor{Incarnation: 9}); len(got) != 4 {
		t.Errorf("of this process, from the oldest: %+v", got)
	}
}

func TestSlowWatcherMissesAndHears(t *testing.T) {
	l := NewLog(9, 2)
	l.Append(Notice{Kind: Ready})
	var got []Notice
	for n := range l.Watch(context.Background(), Cursor{Seq: 1}) {
		if got = append(got, n); len(got) == 1 {
			for range 5 {
				l.Append(Notice{Kind: NotReady})
			}
			l.Close()
		}
	}
	if len(got) != 4 || got[1].Kind != Gap || got[1].Lost != 3 || got[2].Seq != 5 || got[3].Seq != 6 {
		t.Fatalf("got %+v", got)
	}
}

func FuzzNotice(f *testing.F) {
	for k := Gap; k <= Linked; k++ {
		p, err := EncodeNotice(Notice{Kind: k, Seq: 4, Label: "r"})
		if err != nil {
			f.Fatal(err)
		}
		wire, _ := proto.Marshal(p)
		f.Add(wire)
	}
	drain, err := EncodeDrain(Drain{Draining: true, Exports: 3, Waits: []string{"rank 1 has not answered"}})
	if err != nil {
		f.Fatal(err)
	}
	wire, _ := proto.Marshal(drain)
	f.Add(wire)
	f.Fuzz(func(t *testing.T, wire []byte) {
		var p controlv1.WatchResponse
		if proto.Unmarshal(wire, &p) == nil {
			if n, err := DecodeNotice(&p); err == nil {
				if _, err := EncodeNotice(n); err != nil {
					t.Fatalf("decoded %+v, cannot encode: %v", n, err)
				}
			}
		}
		var s controlv1.StatusResponse
		if proto.Unmarshal(wire, &s) == nil {
			_, _ = DecodeStatus(&s)
		}
		var g controlv1.GetResponse
		if proto.Unmarshal(wire, &g) == nil {
			_, _ = DecodeInfo(&g)
		}
		var q controlv1.ListRequest
		if proto.Unmarshal(wire, &q) == nil {
			if q, err := DecodeQuery(&q); err == nil {
				if _, err := EncodeQuery(q); err != nil {
					t.Fatalf("decoded %+v, cannot encode: %v", q, err)
				}
			}
		}
		var l controlv1.ListResponse
		if proto.Unmarshal(wire, &l) == nil {
			_, _ = DecodePage(&l)
		}
		var d controlv1.DrainResponse
		if proto.Unmarshal(wire, &d) == nil {
			if d, err := DecodeDrain(&d); err == nil {
				if _, err := EncodeDrain(d); err != nil {
					t.Fatalf("decoded %+v, cannot encode: %v", d, err)
				}
			}
		}
		var m controlv1.GeometryResponse
		if proto.Unmarshal(wire, &m) == nil {
			_, _ = DecodeGeometry(&m)
		}
	})
}
