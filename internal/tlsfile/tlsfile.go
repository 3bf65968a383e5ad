// Package tlsfile turns the PEM files that a configuration names into a TLS client's
// settings, for servers that are not Baton's own (etcd, NATS).
package tlsfile

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/batonkv/baton/internal/bounded"
)

// ErrFile says that a file of a TLS section cannot be used.
var ErrFile = errors.New("tls file")

// MaxFile bounds the bytes that are read of one file.
const MaxFile = 1 << 20

// Files is a section of a configuration. All empty means no TLS beyond what the
// server's URL asks for.
type Files struct {
	CA         string `yaml:"ca" help:"PEM file of the CAs that the server's certificate may be of"`
	Cert       string `yaml:"cert" help:"PEM file of the client certificate"`
	Key        string `yaml:"key" help:"PEM file of the client certificate's key"`
	ServerName string `yaml:"server-name" help:"name to expect in the server's certificate, when its address is not it"`
}

// Set says whether any field is given.
func (f Files) Set() bool { return f != Files{} }

// Check says which field is missing.
func (f Files) Check() error {
	switch {
	case f.Cert != "" && f.Key == "":
		return fmt.Errorf("%w: key is empty and cert is not: give both or neither", ErrFile)
	case f.Key != "" && f.Cert == "":
		return fmt.Errorf("%w: cert is empty and key is not: give both or neither", ErrFile)
	}
	return nil
}

// Client reads the files; nil when none is given.
func (f Files) Client() (*tls.Config, error) {
	if err := f.Check(); err != nil || !f.Set() {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
	if f.CA != "" {
		pem, err := Read(f.CA)
		if err != nil {
			return nil, fmt.Errorf("%w: ca: %w", ErrFile, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: ca: no certificate in %s: want a PEM file", ErrFile, f.CA)
		}
	}
	if f.Cert != "" {
		cert, err := Pair(f.Cert, f.Key)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

// Pair reads a certificate and its key.
func Pair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := Read(certFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%w: cert: %w", ErrFile, err)
	}
	key, err := Read(keyFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%w: key: %w", ErrFile, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%w: cert %s and key %s: %w", ErrFile, certFile, keyFile, err)
	}
	return pair, nil
}

// Read gives the bytes of a file of at most MaxFile.
func Read(path string) ([]byte, error) { return bounded.File(path, MaxFile) }
