package etcd

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/internal/tlsfile"
	"github.com/batonkv/baton/sidecar/certs"
)

// leafFiles makes a leaf of the CA in dir and gives its files.
func leafFiles(t *testing.T, ca *certs.CA, dir, name string) tlsfile.Files {
	t.Helper()
	leaf, err := ca.Leaf(certs.LeafConfig{
		Identity: certs.Identity{Kind: certs.Control, Name: name},
		IPs:      []net.IP{net.IPv4(127, 0, 0, 1)}, At: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	f := tlsfile.Files{
		CA:   filepath.Join(dir, certs.CAFile),
		Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+"-key.pem"),
	}
	if err := leaf.Write(f.Cert, f.Key); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestMutualTLS(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	var cas []*certs.CA
	for _, dir := range dirs {
		ca, err := certs.NewCA("test", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := ca.Write(dir); err != nil {
			t.Fatal(err)
		}
		cas = append(cas, ca)
	}
	server := leafFiles(t, cas[0], dirs[0], "etcd")
	e := start(t, servers.EtcdConfig{CA: server.CA, Cert: server.Cert, Key: server.Key})
	defer e.Stop()
	c := config(e)
	c.DialTimeout = 3 * time.Second
	c.TLS = leafFiles(t, cas[0], dirs[0], "client")
	g, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Register(t.Context(), record("tls", 0)); err != nil {
		t.Error(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	c.DialTimeout = 300 * time.Millisecond
	for name, files := range map[string]tlsfile.Files{
		"no client certificate":       {CA: c.TLS.CA},
		"another CA":                  {CA: filepath.Join(dirs[1], certs.CAFile), Cert: c.TLS.Cert, Key: c.TLS.Key},
		"a certificate of another CA": leafFiles(t, cas[1], dirs[1], "stranger"),
	} {
		c.TLS = files
		if _, err := Open(t.Context(), c); !errors.Is(err, discovery.ErrDown) || !strings.Contains(err.Error(), "etcd.tls") {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.TLS = tlsfile.Files{CA: filepath.Join(dirs[0], "absent.pem")}
	if _, err := Open(t.Context(), c); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "absent.pem") {
		t.Errorf("a file that is absent: %v", err)
	}
}
