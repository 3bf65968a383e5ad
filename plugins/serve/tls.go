package serve

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strings"
	"time"
)

// clientCertKey is where a host puts its certificate when it wants mutual TLS.
const clientCertKey = "PLUGIN_CLIENT_CERT"

// certField is the place of the plugin's certificate in the handshake line.
const certField = 5

// security is what the host asks for. greeted is called when the server has ended.
func security() (provider func() (*tls.Config, error), greeted func() error, err error) {
	cert := os.Getenv(clientCertKey)
	if cert == "" {
		return nil, func() error { return nil }, nil
	}
	c, der, err := automatic(cert)
	if err != nil {
		return nil, nil, err
	}
	if greeted, err = greet(der); err != nil {
		return nil, nil, err
	}
	return func() (*tls.Config, error) { return c, nil }, greeted, nil
}

// automatic is mutual TLS with the host that gave its certificate in the environment.
// go-plugin's own makes a P-521 certificate, which BoringSSL refuses, and with it gRPC in
// Python, Ruby and C++; this one is P-256. The rest is as there.
func automatic(clientCert string) (c *tls.Config, der []byte, err error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(clientCert)) {
		return nil, nil, fmt.Errorf("plugin: %s holds no certificate: want one in PEM", clientCertKey)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	own := &x509.Certificate{
		Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"}, SerialNumber: serial,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().AddDate(30, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if der, err = x509.CreateCertificate(rand.Reader, own, own, key.Public(), key); err != nil {
		return nil, nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS13}, der, nil
}

// greet puts der into the handshake line, which go-plugin writes to standard output
// without it when the certificate is not its own. It returns what waits until the line is
// out, to be called when the server has ended.
func greet(der []byte) (wait func() error, err error) {
	out := os.Stdout
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	os.Stdout = w
	done := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(r).ReadString('\n')
		if f := strings.Split(strings.TrimSuffix(line, "\n"), "|"); err == nil && len(f) > certField {
			f[certField] = base64.RawStdEncoding.EncodeToString(der)
			_, err = fmt.Fprintln(out, strings.Join(f, "|"))
		} else if err == nil {
			err = fmt.Errorf("plugin: handshake line %q has no place for a certificate", line)
		}
		done <- err
	}()
	return func() error { return errors.Join(w.Close(), <-done, r.Close()) }, nil
}
