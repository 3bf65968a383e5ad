package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	controlv1 "github.com/batonkv/baton/proto/control/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/control/client"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/internal/certtest"
)

// service answers Status alone.
type service struct{ control.Service }

func (service) Status(context.Context) (control.Status, error) { return control.Status{Ranks: 3}, nil }

func serve(t *testing.T, ca *certtest.CA) string {
	t.Helper()
	config, _ := ca.Configs(t, "baton://c/t/g/0")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	control.Register(s, service{}, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// TestNeverSent: an import that no connection took is not in doubt, and its error says
// which address, and whether nobody answers or somebody refuses.
func TestNeverSent(t *testing.T) {
	ours, theirs := certtest.New(t), certtest.New(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	_, own := ours.Configs(t, "baton://control/dev")
	_, foreign := theirs.Configs(t, "baton://control/dev")
	trusting := foreign.Clone()
	trusting.InsecureSkipVerify = true
	for name, c := range map[string]struct {
		addr string
		as   *tls.Config
		want error
	}{
		"nobody answers":        {closed.Addr().String(), own, handoff.ErrPeer},
		"this side refuses":     {serve(t, theirs), own, handoff.ErrDenied},
		"the sidecar refuses":   {serve(t, ours), trusting, handoff.ErrDenied},
		"its identity is wrong": {serve(t, ours), refusing(own), handoff.ErrDenied},
	} {
		t.Run(name, func(t *testing.T) {
			cl, err := client.Dial(c.addr, c.as)
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			_, ierr := cl.Import(bounded(t), handoff.Import{Label: "r"})
			_, serr := cl.Status(bounded(t))
			for call, err := range map[string]error{"import": ierr, "status": serr} {
				if !errors.Is(err, c.want) || errors.Is(err, handoff.ErrInDoubt) || !strings.Contains(err.Error(), c.addr) {
					t.Errorf("%s: %v, want %v", call, err, c.want)
				}
			}
		})
	}
}

// refusing is config with a peer that it does not want.
func refusing(config *tls.Config) *tls.Config {
	config = config.Clone()
	config.VerifyConnection = func(tls.ConnectionState) error { return errors.New("another rank") }
	return config
}

func TestVersions(t *testing.T) {
	ca := certtest.New(t)
	addr := serve(t, ca)
	_, config := ca.Configs(t, "baton://control/dev")
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := controlv1.NewControlClient(conn)
	for said, want := range map[string]error{"": nil, "1": nil, "7,1": nil, "7": handoff.ErrVersion, "x": handoff.ErrVersion} {
		ctx := bounded(t)
		if said != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, control.VersionsKey, said)
		}
		_, err := c.Status(ctx, &controlv1.StatusRequest{})
		if !errors.Is(errs.FromStatus(err), want) {
			t.Errorf("%q: %v, want %v", said, err, want)
		}
		if said == "7" && !strings.Contains(err.Error(), "speaks 1 and its caller 7") {
			t.Errorf("%v: does not name both", err)
		}
	}
}
