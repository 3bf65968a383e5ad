// Package selfcert makes the certificate that one side of a plugin's connection has for
// one process life. go-plugin's own AutoMTLS makes P-521 ones, which BoringSSL refuses, and
// with it gRPC in Python, Ruby and C++; these are P-256. The rest is as there: who connects
// trusts the other's certificate alone, which came by the environment and the handshake
// line.
package selfcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"time"
)

// EnvClient is where the side that starts a process puts its certificate, PEM.
const EnvClient = "PLUGIN_CLIENT_CERT"

// Name is whom a certificate is of, on either side.
const Name = "localhost"

// New is a certificate for one use, with its key.
func New(use x509.ExtKeyUsage) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, err
	}
	own := &x509.Certificate{
		Subject: pkix.Name{CommonName: Name}, DNSNames: []string{Name}, SerialNumber: serial,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().AddDate(30, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
		ExtKeyUsage: []x509.ExtKeyUsage{use},
	}
	der, err := x509.CreateCertificate(rand.Reader, own, own, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// PEM is c's certificate as it travels in the environment.
func PEM(c tls.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}))
}
