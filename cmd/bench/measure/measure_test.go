package measure

import (
	"slices"
	"testing"
)

func TestRig(t *testing.T) {
	for _, c := range Cases() {
		c.Tokens = 100
		r, err := New(t.Context(), c, 0)
		if err != nil {
			t.Fatal(c.Name, err)
		}
		d, err := r.Reshard(t.Context())
		m, merr := r.Memcpy()
		if err != nil || merr != nil || d <= 0 || m <= 0 || r.Bytes() == 0 {
			t.Errorf("%s: %v %v, %v %v, %d bytes", c.Name, d, err, m, merr, r.Bytes())
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkReshard lets the re-shard and memcpy take turns; x/memcpy is the median of
// the ratios of their speeds.
func BenchmarkReshard(b *testing.B) {
	for _, c := range Cases() {
		b.Run(c.Name, func(b *testing.B) {
			r, err := New(b.Context(), c, 0)
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close(b.Context())
			_, err = r.Reshard(b.Context()) // the mappings' first touch
			if err != nil {
				b.Fatal(err)
			}
			var ratio []float64
			var took float64
			for b.Loop() {
				m, err := r.Memcpy()
				if err != nil {
					b.Fatal(err)
				}
				d, err := r.Reshard(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				ratio = append(ratio, m.Seconds()/d.Seconds())
				took += d.Seconds()
			}
			slices.Sort(ratio)
			b.ReportMetric(ratio[len(ratio)/2], "x/memcpy")
			b.ReportMetric(float64(r.Bytes())*float64(len(ratio))/took/1e9, "GB/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
