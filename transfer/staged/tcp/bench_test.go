package tcp_test

import (
	"crypto/tls"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer/staged"
)

// BenchmarkFetch brings chunks from one wire to another of this process.
func BenchmarkFetch(b *testing.B) {
	const chunk, chunks = 4 << 20, 4
	for _, secure := range []bool{true, false} {
		b.Run(map[bool]string{true: "tls", false: "plain"}[secure], func(b *testing.B) {
			var server, client *tls.Config
			if secure {
				id := identified(b, newCA(b), "decode-0")
				server, client = id.Server(nil), id.Client(nil)
			}
			open := makes(server, client)
			src, dst := open(b, chunks, chunk).Wire, open(b, chunks, chunk).Wire
			for i := range int32(chunks) {
				if err := src.Offer(staged.Exposed{Offer: uint64(i), Chunk: i, Bytes: chunk}); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(chunk)
			began := cpu(b)
			free := make(chan int32, chunks)
			for i := range int32(chunks) {
				free <- i
			}
			for range b.N {
				i := <-free
				dst.Fetch(staged.Fetching{Addr: src.Addr(), Of: 1, Offer: uint64(i), Chunk: i, Bytes: chunk}, func(err error) {
					if err != nil {
						b.Error(err)
					}
					free <- i
				})
			}
			for range chunks {
				<-free
			}
			b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpu is what this process used so far: a figure that other processes disturb less than time.
func cpu(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
