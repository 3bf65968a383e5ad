package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Certificates hold from a little before they are made, for clocks that differ.
const (
	backdate    = 5 * time.Minute
	DefaultLife = 365 * 24 * time.Hour
	caLife      = 10 * DefaultLife
)

// CA signs the leaves of one cluster.
type CA struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// Pair is one certificate and its key.
type Pair struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// NewCA makes a CA that is called name and valid from at for ten years.
func NewCA(name string, at time.Time) (*CA, error) {
	key, serial, err := fresh()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name, Organization: []string{"baton"}},
		NotBefore:             at.Add(-backdate),
		NotAfter:              at.Add(caLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	cert, err := sign(template, template, key, key)
	if err != nil {
		return nil, err
	}
	return &CA{Cert: cert, Key: key}, nil
}

// LeafConfig is what a leaf says.
type LeafConfig struct {
	Identity Identity
	IPs      []net.IP // addresses that clients dial
	DNS      []string // names that clients dial
	At       time.Time
	Life     time.Duration // 0 is DefaultLife
}

// hostName is a name that a client can compare with what it dials (RFC 1123; RFC 6125
// for the wildcard).
var hostName = regexp.MustCompile(`^(\*\.)?([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)*[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)

// Leaf makes a certificate, for either end of a connection.
func (ca *CA) Leaf(c LeafConfig) (*Pair, error) {
	if err := c.Identity.Check(); err != nil {
		return nil, err
	}
	for _, host := range c.DNS {
		if len(host) > 253 || !hostName.MatchString(host) {
			return nil, fmt.Errorf("%w: host name %q: want labels of a-z, 0-9 and - with dots between, the first may be *", ErrIdentity, host)
		}
		if last := host[strings.LastIndexByte(host, '.')+1:]; strings.Trim(last, "0123456789") == "" {
			return nil, fmt.Errorf("%w: host name %q: ends in a number, as addresses do, which no client compares with names: give it as one", ErrIdentity, host)
		}
	}
	end, err := ca.end(c)
	if err != nil {
		return nil, err
	}
	key, serial, err := fresh()
	if err != nil {
		return nil, err
	}
	cert, err := sign(&x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: string(c.Identity.Kind), Organization: []string{"baton"}},
		NotBefore:    c.At.Add(-backdate),
		NotAfter:     end,
		URIs:         []*url.URL{c.Identity.URI()},
		IPAddresses:  c.IPs,
		DNSNames:     c.DNS,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca.Cert, key, ca.Key)
	if err != nil {
		return nil, err
	}
	return &Pair{Cert: cert, Key: key}, nil
}

// end is when the leaf ends: as asked, or after DefaultLife and with the CA at the latest.
func (ca *CA) end(c LeafConfig) (time.Time, error) {
	last := ca.Cert.NotAfter
	end := c.At.Add(c.Life)
	switch {
	case c.Life < 0:
		return end, fmt.Errorf("%w: %v: want more than 0", ErrLife, c.Life)
	case !c.At.Before(last):
		return end, fmt.Errorf("%w: the CA ended at %s: make a new one", ErrLife, last.UTC().Format(time.RFC3339))
	case c.Life > 0 && end.After(last):
		return end, fmt.Errorf("%w: %v: the CA itself ends at %s: want at most %v", ErrLife, c.Life,
			last.UTC().Format(time.RFC3339), last.Sub(c.At).Truncate(time.Hour))
	case c.Life > 0:
		return end, nil
	}
	if end = c.At.Add(DefaultLife); end.After(last) {
		end = last
	}
	return end, nil
}

func fresh() (*ecdsa.PrivateKey, *big.Int, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: key: %w", ErrCert, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: serial number: %w", ErrCert, err)
	}
	return key, serial, nil
}

func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, fmt.Errorf("%w: sign: %w", ErrCert, err)
	}
	return x509.ParseCertificate(der)
}

// CertPEM is a certificate as PEM.
func CertPEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// KeyPEM is a key as PEM.
func KeyPEM(k *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("%w: key: %w", ErrCert, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
