package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Identified is a process with its certificate, and the CA it trusts.
type Identified struct {
	Identity Identity
	roots    *x509.CertPool
	pair     tls.Certificate
}

func identified(roots []*x509.Certificate, pair tls.Certificate, at time.Time) (*Identified, error) {
	own := &Identified{roots: x509.NewCertPool(), pair: pair}
	for _, r := range roots {
		own.roots.AddCert(r)
	}
	leaf := pair.Leaf
	if leaf == nil {
		var err error
		if leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCert, err)
		}
	}
	var err error
	if own.Identity, err = IdentityOf(leaf); err != nil {
		return nil, err
	}
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots: own.roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return nil, explain(fmt.Sprintf("own certificate %s", own.Identity), err)
	}
	return own, nil
}

// Verify is asked about a peer after its certificate was verified; an error ends the
// handshake. A nil Verify takes every identity of the CA.
type Verify func(Identity) error

// Expect is a Verify that takes one identity only.
func Expect(want Identity) Verify {
	return func(got Identity) error {
		if got != want {
			return fmt.Errorf("%w: the peer is %s; want %s", ErrIdentity, got, want)
		}
		return nil
	}
}

// Server is the TLS of a listener: clients show a certificate of the CA.
func (own *Identified) Server(verify Verify) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{own.pair},
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              own.roots,
		SessionTicketsDisabled: true, // a resumed session would skip a certificate that has expired since
		VerifyConnection:       verify.connection,
	}
}

// Client is the TLS of a dialler. The server is known by its identity, which verify
// looks at, and not by its address: a sidecar's address changes, its name does not.
func (own *Identified) Client(verify Verify) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{own.pair},
		// The chain is verified below: the standard check insists on a host name.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if err := own.verifyChain(s, time.Now()); err != nil {
				return err
			}
			return verify.leaf(s.PeerCertificates[0])
		},
	}
}

// verifyChain checks what a server showed against the CA.
func (own *Identified) verifyChain(s tls.ConnectionState, at time.Time) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("%w: the server showed no certificate", ErrCert)
	}
	between := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: own.roots, Intermediates: between, CurrentTime: at,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return explain("the server's certificate", err)
	}
	return nil
}

// connection is VerifyConnection of a server, whose standard check has run.
func (v Verify) connection(s tls.ConnectionState) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("%w: the client showed no certificate", ErrCert)
	}
	return v.leaf(s.PeerCertificates[0])
}

func (v Verify) leaf(c *x509.Certificate) error {
	id, err := IdentityOf(c)
	if err != nil {
		return err
	}
	if v == nil {
		return nil
	}
	return v(id)
}

// explain adds to an x509 error what to do about it.
func explain(whose string, err error) error {
	remedy := "make a new one with baton certs leaf"
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		remedy = "it has expired or is not valid yet: check the clock, or make a new one with baton certs leaf"
	case errors.As(err, &unknown):
		remedy = "it is of another CA: both ends need leaves of one CA, and tls.ca must name that CA"
	}
	return fmt.Errorf("%w: %s: %w: %s", ErrCert, whose, err, remedy)
}
