package bench

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/batonkv/baton/sidecar/certs"
)

// stream is one flat connection over loopback, both ends of it in this process: what a
// program that knows its bytes to lie in a row would do with the standard library.
type stream struct{ out, in net.Conn }

// openStream connects the two ends; with TLS they know each other as sidecars do.
func openStream(secure bool) (*stream, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	in, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	out, err := l.Accept()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	s := &stream{out, in}
	if !secure {
		return s, nil
	}
	now := time.Now()
	ca, err := certs.NewCA("baton bench", now)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	id := certs.SidecarID("bench", "bench", "stream", 0)
	pair, err := ca.Leaf(certs.LeafConfig{Identity: id, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, At: now})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	own, err := pair.Identified(ca.Cert, now)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	client := own.Client(certs.Expect(id)).Clone()
	client.ServerName = "127.0.0.1"
	s.out, s.in = tls.Server(out, own.Server(certs.Expect(id))), tls.Client(in, client)
	return s, nil
}

// move brings from into to, equally long, and says how long that took.
func (s *stream) move(to, from []byte) (time.Duration, error) {
	began := time.Now()
	wrote := make(chan error, 1)
	go func() {
		_, err := s.out.Write(from)
		wrote <- err
	}()
	_, err := io.ReadFull(s.in, to)
	if err != nil {
		err = fmt.Errorf("flat stream: %w", errors.Join(err, s.close()))
	}
	err = errors.Join(err, <-wrote)
	return time.Since(began), err
}

func (s *stream) close() error { return errors.Join(s.out.Close(), s.in.Close()) }
