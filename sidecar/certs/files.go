package certs

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/batonkv/baton/internal/tlsfile"
)

// Names of the CA's files in a directory of certificates.
const (
	CAFile    = "ca.pem"
	CAKeyFile = "ca-key.pem"
)

// Write puts the CA into dir, which it makes where it lacks, the key readable by its
// owner only. It replaces nothing.
func (ca *CA) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrCert, err)
	}
	return (&Pair{Cert: ca.Cert, Key: ca.Key}).Write(filepath.Join(dir, CAFile), filepath.Join(dir, CAKeyFile))
}

// Write puts the pair into two new files, the key readable by its owner only. It
// replaces nothing, since a key that is lost is lost for good, and makes no directory.
func (p *Pair) Write(certFile, keyFile string) error {
	key, err := KeyPEM(p.Key)
	if err != nil {
		return err
	}
	if err := writeNew(keyFile, key, 0o600); err != nil {
		return err
	}
	if err := writeNew(certFile, CertPEM(p.Cert), 0o644); err != nil {
		return errors.Join(err, os.Remove(keyFile))
	}
	return nil
}

func writeNew(path string, b []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %s exists: move it away, or choose another directory: %w", ErrCert, path, err)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCert, err)
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%w: %w", ErrCert, errors.Join(err, os.Remove(path)))
	}
	return nil
}

// ReadCA reads what CA.Write wrote.
func ReadCA(dir string) (*CA, error) {
	certs, err := ReadCerts(filepath.Join(dir, CAFile))
	if err != nil {
		return nil, err
	}
	if !certs[0].IsCA {
		return nil, fmt.Errorf("%w: %s is not a CA's: make one with baton certs ca", ErrCert, filepath.Join(dir, CAFile))
	}
	path := filepath.Join(dir, CAKeyFile)
	b, err := tlsfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCert, err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%w: %s: no PEM block", ErrCert, path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCert, path, err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || !ec.PublicKey.Equal(certs[0].PublicKey) {
		return nil, fmt.Errorf("%w: %s is not the key of %s", ErrCert, path, CAFile)
	}
	return &CA{Cert: certs[0], Key: ec}, nil
}

// maxCerts bounds the certificates of one file.
const maxCerts = 64

// ReadCerts reads the certificates of a PEM file, at least one.
func ReadCerts(path string) ([]*x509.Certificate, error) {
	b, err := tlsfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCert, err)
	}
	var out []*x509.Certificate
	key := false
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			key = key || strings.HasSuffix(block.Type, "PRIVATE KEY")
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrCert, path, err)
		}
		if out = append(out, c); len(out) > maxCerts {
			return nil, fmt.Errorf("%w: %s: more than %d certificates", ErrCert, path, maxCerts)
		}
	}
	switch {
	case len(out) > 0:
		return out, nil
	case key:
		return nil, fmt.Errorf("%w: %s holds a private key and no certificate: name the certificate's file", ErrCert, path)
	}
	return nil, fmt.Errorf("%w: %s: no certificate in it: want a PEM file", ErrCert, path)
}

// ErrLife says that a certificate cannot hold as long as asked.
var ErrLife = errors.New("certs: life")

// Files is the tls section of a sidecar's configuration: all three, always.
type Files struct {
	CA   string `yaml:"ca" help:"PEM file of the cluster's CA"`
	Cert string `yaml:"cert" help:"PEM file of this process's certificate (baton certs leaf makes one)"`
	Key  string `yaml:"key" help:"PEM file of the certificate's key"`
}

// Check says every file that is not named.
func (f Files) Check() error {
	var errs []error
	for _, p := range []struct{ field, path string }{{"ca", f.CA}, {"cert", f.Cert}, {"key", f.Key}} {
		if p.path == "" {
			errs = append(errs, fmt.Errorf("%w: tls.%s: is empty: name a PEM file; baton certs makes one", ErrCert, p.field))
		}
	}
	return errors.Join(errs...)
}

// Load reads the files, as of at: a certificate that is not valid then is refused.
func (f Files) Load(at time.Time) (*Identified, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	roots, err := ReadCerts(f.CA)
	if err != nil {
		return nil, err
	}
	for _, c := range roots {
		if !c.IsCA {
			return nil, fmt.Errorf("%w: tls.ca: %s: %q is not a CA's: name the cluster's %s", ErrCert, f.CA, c.Subject, CAFile)
		}
	}
	pair, err := tlsfile.Pair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCert, err)
	}
	return identified(roots, pair, at)
}

// Identified is the same of a pair in memory.
func (p *Pair) Identified(ca *x509.Certificate, at time.Time) (*Identified, error) {
	pair := tls.Certificate{Certificate: [][]byte{p.Cert.Raw}, PrivateKey: p.Key, Leaf: p.Cert}
	return identified([]*x509.Certificate{ca}, pair, at)
}
