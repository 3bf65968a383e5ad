package baseline

import (
	"context"
	"crypto/tls"
	"testing"

	"github.com/batonkv/baton/sidecar/internal/certtest"
)

// Numbers come, and nothing that was opened stays: each of many runs in turn needs its own
// port, and ends without a peer, without a certificate, and with its context.
func TestBaseline(t *testing.T) {
	if r := Copy(); r <= 0 {
		t.Errorf("a copy of memory at %v", r)
	}
	server, client := certtest.New(t).Configs(t, "baton://c/t/a/0")
	for name, c := range map[string]struct{ server, client *tls.Config }{"tls": {server, client}, "plain": {}} {
		if r, err := TCP(t.Context(), c.server, c.client); err != nil || r <= 0 {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	_, stranger := certtest.New(t).Configs(t, "baton://c/t/a/0")
	if r, err := TCP(t.Context(), server, stranger); err == nil {
		t.Errorf("with a stranger's certificate: %v", r)
	}
	over, end := context.WithCancel(t.Context())
	end()
	if r, err := TCP(over, nil, nil); err == nil {
		t.Errorf("after its end: %v", r)
	}
}
