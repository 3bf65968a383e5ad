//go:build !noembed

package servers

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func TestBothAnswerAndStop(t *testing.T) {
	begin := time.Now()
	s, err := Start(t.Context(), "", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ready in %v", time.Since(begin))
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Etcd.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := client.Put(ctx, "a", "b"); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(s.NATS.URL())
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	addrs := []string{s.Etcd.Addr(), s.NATS.Addr()}
	s.Stop()
	for _, addr := range addrs {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Errorf("port still held after Stop: %v", err)
			continue
		}
		l.Close()
	}
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := StartNATS(ctx, NATSConfig{Addr: l.Addr().String()}); !errors.Is(err, ErrStart) {
		t.Errorf("nats on a used port: %v", err)
	}
	if _, err := StartEtcd(ctx, EtcdConfig{Dir: t.TempDir(), Addr: l.Addr().String()}); !errors.Is(err, ErrStart) {
		t.Errorf("etcd on a used port: %v", err)
	}
}

func TestEtcdConfigCheck(t *testing.T) {
	for _, c := range []EtcdConfig{{}, {Dir: "d", Cert: "c"}, {Dir: "d", Key: "k"}, {Dir: "d", CA: "ca"}} {
		if err := c.Check(); !errors.Is(err, ErrStart) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
