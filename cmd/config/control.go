package config

import (
	"errors"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/etcd"
	"github.com/batonkv/baton/sidecar/certs"
)

// Control is how a control plane reaches sidecars: through the discovery of a cluster, or
// one group's leader at its address.
type Control struct {
	Cluster string `yaml:"cluster" help:"cluster whose groups are seen"`
	Tenant  string `yaml:"tenant" help:"tenant of the group at addr"`
	Group   string `yaml:"group" help:"group at addr"`
	Addr    string `yaml:"addr" help:"host:port of one group's leader (rank 0's sidecar), instead of etcd"`

	Etcd etcd.Config `yaml:"etcd"`
	TLS  certs.Files `yaml:"tls"`
}

// DefaultControl is a Control that lacks the cluster, where it is, and the certificate.
func DefaultControl() Control { return Control{Tenant: "default", Etcd: etcd.Default()} }

// Check says every fault, each with its field and remedy; the errors are ErrConfig.
func (c Control) Check() error {
	var f faults
	f.name("cluster", c.Cluster)
	if c.Addr == "" {
		f.section("etcd", etcd.ErrConfig, c.Etcd.Check())
	} else {
		f.addr("addr", c.Addr, false)
		f.name("group", c.Group)
		f.name("tenant", c.Tenant)
		if len(c.Etcd.Endpoints) > 0 {
			f.add("addr", "is given, and etcd.endpoints too: want one")
		}
	}
	f.section("tls", certs.ErrCert, c.TLS.Check())
	return errors.Join(f...)
}

func (c *Control) files() []*string {
	return []*string{&c.TLS.CA, &c.TLS.Cert, &c.TLS.Key, &c.Etcd.TLS.CA, &c.Etcd.TLS.Cert, &c.Etcd.TLS.Key}
}

// name checks one name.
func (f *faults) name(field, value string) {
	if value == "" {
		f.add(field, "is empty: set --%s or the file's key", field)
	} else if err := discovery.CheckName(field, value); err != nil {
		f.add(field, "%q: want 1 to 63 of a-z, 0-9 and -, not at the ends", value)
	}
}
