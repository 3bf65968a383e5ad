package front

import "testing"

func FuzzLine(f *testing.F) {
	f.Add([]byte(`{"token":5}`))
	f.Add([]byte(`{"done":true,"reason":"eos","blocks":1}`))
	f.Add([]byte(`{"error":"x"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decode(b)
		if err == nil && l.Error == "" && !l.Done && l.Token == nil {
			t.Fatalf("%q says nothing", b)
		}
		if err == nil && l.Error == "" && l.Done && l.Result == nil {
			t.Fatalf("%q ends with nothing", b)
		}
	})
}
