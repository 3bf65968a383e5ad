package sidecar

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/staged"
)

// TestPlainMeetsTLS: wire movers of sidecars that are configured alike move bytes, and
// those of which one alone is plain refuse each other, and say what to set.
func TestPlainMeetsTLS(t *testing.T) {
	dir := t.TempDir()
	ca, err := certs.NewCA("test", time.Now())
	if err == nil {
		err = ca.Write(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	files := func(group string) certs.Files {
		return certs.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, group+".pem"), Key: filepath.Join(dir, group+"-key.pem")}
	}
	for _, group := range []string{"p", "d"} {
		f := files(group)
		leaf, err := ca.Leaf(certs.LeafConfig{Identity: certs.SidecarID("c", "t", group, 0), At: time.Now()})
		if err == nil {
			err = leaf.Write(f.Cert, f.Key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	options := func(group string, plain bool) json.RawMessage {
		b, err := json.Marshal(wireOptions{Cluster: "c", Tenant: "t", TLS: files(group), Connections: 2, Plain: plain})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	open := func(group, peers string, plain bool) staged.Wire {
		w, err := OpenWire(mover.Setup{Transport: config.TCP, Wire: 7, Group: peers, Chunk: 4096, Listen: "127.0.0.1:0", Options: options(group, plain)}, make([]byte, 8192))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		return w
	}
	for _, from := range []bool{false, true} {
		for _, to := range []bool{false, true} {
			src, dst := open("p", "d", from), open("d", "p", to)
			if err := src.Offer(staged.Exposed{Offer: 1, Bytes: 64}); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			dst.Fetch(staged.Fetching{Addr: src.Addr(), Of: 7, Offer: 1, Bytes: 64}, func(err error) { done <- err })
			switch err := <-done; {
			case from == to && err != nil:
				t.Errorf("both plain: %v: %v", from, err)
			case from != to && (err == nil || !strings.Contains(err.Error(), "set staging.transport alike")):
				t.Errorf("plain: %v from %v: %v", to, from, err)
			}
		}
	}
	if w, err := OpenWire(mover.Setup{Transport: "pigeon", Options: options("p", false)}, make([]byte, 8192)); err == nil {
		w.Close()
		t.Error("a transport that nobody knows was opened")
	}
}
