package serve

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/batonkv/baton/plugins/internal/selfcert"
)

// certField is the place of the plugin's certificate in the handshake line.
const certField = 5

// security is what the host asks for. greeted is called when the server has ended.
func security() (provider func() (*tls.Config, error), greeted func() error, err error) {
	cert := os.Getenv(selfcert.EnvClient)
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
func automatic(clientCert string) (c *tls.Config, der []byte, err error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(clientCert)) {
		return nil, nil, fmt.Errorf("plugin: %s holds no certificate: want one in PEM", selfcert.EnvClient)
	}
	own, err := selfcert.New(x509.ExtKeyUsageServerAuth)
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS13},
		own.Certificate[0], nil
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
