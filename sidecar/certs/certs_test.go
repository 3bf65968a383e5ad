package certs

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func newCA(t *testing.T) *CA {
	t.Helper()
	ca, err := NewCA("test", time.Now().Add(-72*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func leaf(t *testing.T, ca *CA, c LeafConfig) *Pair {
	t.Helper()
	if c.At.IsZero() {
		c.At = time.Now()
	}
	p, err := ca.Leaf(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// own is the pair as its process holds it; at is a time when the pair is valid.
func own(t *testing.T, ca *CA, p *Pair, at time.Time) *Identified {
	t.Helper()
	id, err := p.Identified(ca.Cert, at)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// meet does a handshake and one byte each way: in TLS 1.3 a client learns only from
// its first read that the server refused it.
func meet(t *testing.T, server, client *tls.Config) (serverSaw, clientSaw tls.ConnectionState, err error) {
	t.Helper()
	a, b := net.Pipe()
	s, c := tls.Server(a, server), tls.Client(b, client)
	done := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		a.Close()
		done <- err
	}()
	err = c.Handshake()
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	b.Close()
	return s.ConnectionState(), c.ConnectionState(), errors.Join(err, <-done)
}

func TestMutual(t *testing.T) {
	ca := newCA(t)
	a, b := SidecarID("c", "t", "prefill-0", 0), Identity{Kind: Control, Name: "coordinator"}
	server := own(t, ca, leaf(t, ca, LeafConfig{Identity: a}), time.Now())
	client := own(t, ca, leaf(t, ca, LeafConfig{Identity: b}), time.Now())
	s, c, err := meet(t, server.Server(Expect(b)), client.Client(Expect(a)))
	if err != nil {
		t.Fatal(err)
	}
	if s.Version != tls.VersionTLS13 {
		t.Errorf("version %x", s.Version)
	}
	if got, err := IdentityOf(s.PeerCertificates[0]); err != nil || got != b {
		t.Errorf("the server saw %v, %v", got, err)
	}
	if got, err := IdentityOf(c.PeerCertificates[0]); err != nil || got != a {
		t.Errorf("the client saw %v, %v", got, err)
	}
}

func TestRefused(t *testing.T) {
	ca, other, now := newCA(t), newCA(t), time.Now()
	a, b := SidecarID("c", "t", "g", 0), SidecarID("c", "t", "g", 1)
	good := func(id Identity) *Identified { return own(t, ca, leaf(t, ca, LeafConfig{Identity: id}), now) }
	stranger := own(t, other, leaf(t, other, LeafConfig{Identity: b}), now)
	before := now.Add(-48 * time.Hour)
	expired := own(t, ca, leaf(t, ca, LeafConfig{Identity: b, At: before, Life: time.Hour}), before)
	old := good(b).Client(nil)
	old.MaxVersion, old.MinVersion = tls.VersionTLS12, tls.VersionTLS12
	bare := good(b).Client(nil)
	bare.Certificates = nil
	for _, c := range []struct {
		name           string
		server, client *tls.Config
		want           string
	}{
		{"wrong client", good(a).Server(Expect(a)), good(b).Client(nil), "the peer is c/t/g/1; want c/t/g/0"},
		{"wrong server", good(a).Server(nil), good(b).Client(Expect(b)), "the peer is c/t/g/0; want c/t/g/1"},
		{"client of another CA", good(a).Server(nil), stranger.Client(nil), "another CA"},
		{"server of another CA", stranger.Server(nil), good(a).Client(nil), "another CA"},
		{"expired client", good(a).Server(nil), expired.Client(nil), "expired"},
		{"expired server", expired.Server(nil), good(a).Client(nil), "expired"},
		{"client without certificate", good(a).Server(nil), bare, "certificate"},
		{"client of TLS 1.2", good(a).Server(nil), old, "protocol version"},
	} {
		if _, _, err := meet(t, c.server, c.client); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
}

func TestOwnCertificate(t *testing.T) {
	ca, other, now := newCA(t), newCA(t), time.Now()
	p := leaf(t, ca, LeafConfig{Identity: SidecarID("c", "t", "g", 0), Life: time.Hour})
	if _, err := p.Identified(ca.Cert, now.Add(2*time.Hour)); !errors.Is(err, ErrCert) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("expired: %v", err)
	}
	if _, err := p.Identified(ca.Cert, now.Add(-2*time.Hour)); !errors.Is(err, ErrCert) {
		t.Errorf("not valid yet: %v", err)
	}
	if _, err := p.Identified(other.Cert, now); !errors.Is(err, ErrCert) || !strings.Contains(err.Error(), "another CA") {
		t.Errorf("another CA: %v", err)
	}
	if _, err := (&Pair{Cert: ca.Cert, Key: ca.Key}).Identified(ca.Cert, now); !errors.Is(err, ErrIdentity) {
		t.Errorf("a certificate without a name: %v", err)
	}
}

func TestFiles(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	ca := newCA(t)
	if err := ca.Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := ca.Write(dir); !errors.Is(err, ErrCert) || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a second CA over the first: %v", err)
	}
	back, err := ReadCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	id := SidecarID("c", "t", "g", 7)
	p := leaf(t, back, LeafConfig{Identity: id, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, DNS: []string{"localhost"}})
	f := Files{CA: filepath.Join(dir, CAFile), Cert: filepath.Join(dir, "leaf.pem"), Key: filepath.Join(dir, "leaf-key.pem")}
	if err := p.Write(f.Cert, f.Key); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{f.Key, filepath.Join(dir, CAKeyFile)} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", path, st.Mode(), err)
		}
	}
	if got, err := f.Load(now); err != nil || got.Identity != id {
		t.Errorf("%+v %v", got, err)
	}
	for name, broken := range map[string]Files{
		"tls.ca: is empty":        {Cert: f.Cert, Key: f.Key},
		"tls.cert: is empty":      {CA: f.CA, Key: f.Key},
		"tls.key: is empty":       {CA: f.CA, Cert: f.Cert},
		"no such file":            {CA: f.CA + "x", Cert: f.Cert, Key: f.Key},
		"is not a CA's":           {CA: f.Cert, Cert: f.Cert, Key: f.Key},
		"holds a private key":     {CA: f.Key, Cert: f.Cert, Key: f.Key},
		"private key does not ma": {CA: f.CA, Cert: f.Cert, Key: filepath.Join(dir, CAKeyFile)},
	} {
		if _, err := broken.Load(now); !errors.Is(err, ErrCert) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadCA(t.TempDir()); !errors.Is(err, ErrCert) {
		t.Error(err)
	}
}

func TestLife(t *testing.T) {
	ca := newCA(t)
	for _, life := range []time.Duration{-time.Hour, caLife + time.Hour} {
		if _, err := ca.Leaf(LeafConfig{Identity: SidecarID("c", "t", "g", 0), At: time.Now(), Life: life}); !errors.Is(err, ErrLife) {
			t.Errorf("%v: %v", life, err)
		}
	}
	if _, err := ca.Leaf(LeafConfig{Identity: SidecarID("c", "t", "g", 0), At: ca.Cert.NotAfter}); !errors.Is(err, ErrLife) {
		t.Errorf("an ended CA: %v", err)
	}
	late := ca.Cert.NotAfter.Add(-time.Hour)
	if p, err := ca.Leaf(LeafConfig{Identity: SidecarID("c", "t", "g", 0), At: late}); err != nil || !p.Cert.NotAfter.Equal(ca.Cert.NotAfter) {
		t.Errorf("near the CA's end: %v", err)
	}
	if err := (Files{}).Check(); strings.Count(err.Error(), "is empty") != 3 {
		t.Errorf("not every fault: %v", err)
	}
}

func TestParseIdentity(t *testing.T) {
	for _, id := range []Identity{
		SidecarID("prod", "team-a", "prefill-0", 3),
		{Kind: Control, Name: "coordinator"},
		{Kind: Admin, Name: "ann"},
	} {
		if got, err := ParseIdentity(id.URI().String()); err != nil || got != id {
			t.Errorf("%v: %v %v", id, got, err)
		}
	}
	for _, s := range []string{
		"", "baton://", "baton://a/b/c", "baton://a/b/c/d", "baton://a/b/c/01", "baton://a/b/c/-1", "baton://a/b/c/+1",
		"baton://a/b/c/65536", "baton://A/b/c/1", "baton://a/b/c/1/", "baton://control/t/g/0", "baton://admin/t/g/0",
		"baton://root/x", "baton://control/", "https://a/b/c/1", "baton://a/b/c/1?x", "baton://a/b/../c/1", "baton://" + strings.Repeat("a", maxURI),
	} {
		if got, err := ParseIdentity(s); !errors.Is(err, ErrIdentity) {
			t.Errorf("%q: %v %v", s, got, err)
		}
	}
}

func FuzzParseIdentity(f *testing.F) {
	f.Add("baton://a/b/c/1")
	f.Add("baton://control/x")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseIdentity(s)
		if err == nil && id.URI().String() != s {
			t.Fatalf("%q reads as %v, which is %q", s, id, id.URI())
		}
	})
}

func FuzzReadCerts(f *testing.F) {
	ca, err := NewCA("fuzz", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(CertPEM(ca.Cert))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "f.pem")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if certs, err := ReadCerts(path); err == nil {
			_, _ = IdentityOf(certs[0])
		}
	})
}
