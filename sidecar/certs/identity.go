// Package certs makes and reads the certificates by which Baton's processes know each
// other: one CA per cluster, ECDSA P-256, TLS 1.3, mutual. It answers who a peer is;
// what that peer may do is decided by those who ask.
package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/batonkv/baton/discovery"
)

var (
	// ErrIdentity says that a certificate names nobody, or not who was expected.
	ErrIdentity = errors.New("certs: wrong identity")
	// ErrCert says that a certificate, key or file of them cannot be used.
	ErrCert = errors.New("certs: bad certificate")
)

// Kind is what sort of process an identity names.
type Kind string

const (
	Sidecar Kind = "sidecar" // baton://<cluster>/<tenant>/<group>/<rank>
	Control Kind = "control" // baton://control/<name>: a control plane, or its shim
	Admin   Kind = "admin"   // baton://admin/<name>: a person at the command line
)

const (
	scheme = "baton"
	maxURI = 512 // bytes of a name in a certificate
)

// Identity is the name in a certificate. A sidecar has Cluster, Tenant, Group and
// Rank; the others have Name.
type Identity struct {
	Kind                   Kind
	Cluster, Tenant, Group string
	Rank                   int32
	Name                   string
}

// SidecarID is the identity of one rank.
func SidecarID(cluster, tenant, group string, rank int32) Identity {
	return Identity{Kind: Sidecar, Cluster: cluster, Tenant: tenant, Group: group, Rank: rank}
}

// Check says which part of the identity is wrong.
func (id Identity) Check() error {
	names := []struct{ field, value string }{{"name", id.Name}}
	switch id.Kind {
	case Control, Admin:
	case Sidecar:
		names = []struct{ field, value string }{{"cluster", id.Cluster}, {"tenant", id.Tenant}, {"group", id.Group}}
		if id.Cluster == string(Control) || id.Cluster == string(Admin) {
			return fmt.Errorf("%w: cluster %q: that name is kept for certificates of another kind; choose another", ErrIdentity, id.Cluster)
		}
		if id.Rank < 0 || id.Rank >= discovery.MaxRanks {
			return fmt.Errorf("%w: rank %d: want 0 to %d", ErrIdentity, id.Rank, discovery.MaxRanks-1)
		}
	default:
		return fmt.Errorf("%w: kind %q: want sidecar, control or admin", ErrIdentity, id.Kind)
	}
	for _, n := range names {
		if err := discovery.CheckName(n.field, n.value); err != nil {
			return fmt.Errorf("%w: %w", ErrIdentity, err)
		}
	}
	return nil
}

// String is cluster/tenant/group/rank, control/name or admin/name.
func (id Identity) String() string {
	if id.Kind == Sidecar {
		return fmt.Sprintf("%s/%s/%s/%d", id.Cluster, id.Tenant, id.Group, id.Rank)
	}
	return string(id.Kind) + "/" + id.Name
}

// URI is the name as it stands in a certificate.
func (id Identity) URI() *url.URL {
	host, path, _ := strings.Cut(id.String(), "/")
	return &url.URL{Scheme: scheme, Host: host, Path: "/" + path}
}

// ParseIdentity reads what URI wrote.
func ParseIdentity(uri string) (Identity, error) {
	if len(uri) > maxURI {
		return Identity{}, fmt.Errorf("%w: a name of %d bytes", ErrIdentity, len(uri))
	}
	wrong := fmt.Errorf("%w: %q: want baton://cluster/tenant/group/rank, baton://control/name or baton://admin/name", ErrIdentity, uri)
	rest, ok := strings.CutPrefix(uri, scheme+"://")
	if !ok {
		return Identity{}, wrong
	}
	parts := strings.Split(rest, "/")
	var id Identity
	switch {
	case len(parts) == 2 && (parts[0] == string(Control) || parts[0] == string(Admin)):
		id = Identity{Kind: Kind(parts[0]), Name: parts[1]}
	case len(parts) == 4:
		rank, err := strconv.ParseInt(parts[3], 10, 32)
		if err != nil || strconv.FormatInt(rank, 10) != parts[3] {
			return Identity{}, wrong
		}
		id = SidecarID(parts[0], parts[1], parts[2], int32(rank))
	default:
		return Identity{}, wrong
	}
	return id, id.Check()
}

// IdentityOf is the one Baton name in a certificate.
func IdentityOf(c *x509.Certificate) (Identity, error) {
	var found []string
	for _, u := range c.URIs {
		if u.Scheme == scheme {
			found = append(found, u.String())
		}
	}
	if len(found) != 1 {
		return Identity{}, fmt.Errorf("%w: certificate %q has %d names of baton://; want one: make it with baton certs leaf",
			ErrIdentity, c.Subject.CommonName, len(found))
	}
	return ParseIdentity(found[0])
}
