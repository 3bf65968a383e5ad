package bench

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/nixl"
)

// descriptor is one flat descriptor of NIXL: two wire movers whose only chunk is all of
// their memory.
type descriptor struct {
	dir   string // of certificates
	wires [2]staged.Wire
	bytes int64
	n     uint64
}

// openDescriptor starts both over the memory of from and to, which has as many bytes.
func openDescriptor(ctx context.Context, o Options, lib nixl.Options, from, to transfer.Memory) (d *descriptor, err error) {
	d = &descriptor{bytes: from.Len}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.dir, err = os.MkdirTemp("", "baton-bench"); err != nil {
		return d, err
	}
	now := time.Now()
	ca, err := certs.NewCA("baton bench", now)
	if err != nil {
		return d, err
	}
	if err = ca.Write(d.dir); err != nil {
		return d, err
	}
	for i, arena := range []transfer.Memory{from, to} {
		own, peer := []string{"p", "d"}[i], []string{"d", "p"}[i]
		pair, err := ca.Leaf(certs.LeafConfig{Identity: certs.SidecarID("bench", "bench", own, 0), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, At: now})
		if err != nil {
			return d, err
		}
		f := certs.Files{CA: filepath.Join(d.dir, "ca.pem"), Cert: filepath.Join(d.dir, own+".pem"), Key: filepath.Join(d.dir, own+"-key.pem")}
		if err := pair.Write(f.Cert, f.Key); err != nil {
			return d, err
		}
		options, err := json.Marshal(struct {
			Cluster, Tenant string
			TLS             certs.Files
			NIXL            nixl.Options
		}{"bench", "bench", f, lib})
		if err != nil {
			return d, err
		}
		w, err := startWire(ctx, o, options, mover.Setup{Transport: "nixl", Wire: 1, Group: peer, Chunk: arena.Len}, arena)
		if err != nil {
			return d, err
		}
		d.wires[i] = w
	}
	return d, nil
}

// move brings all bytes over, and says how long that took.
func (d *descriptor) move() (time.Duration, error) {
	d.n++
	if err := d.wires[0].Offer(staged.Exposed{Offer: d.n, Bytes: d.bytes}); err != nil {
		return 0, err
	}
	began := time.Now()
	err := fetched(d.wires, d.n, d.bytes)
	took := time.Since(began)
	d.wires[0].Withdraw(d.n)
	return took, err
}

func (d *descriptor) close() (err error) {
	for _, w := range d.wires {
		if w != nil {
			err = errors.Join(err, w.Close())
		}
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}
