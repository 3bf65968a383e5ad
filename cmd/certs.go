package cmd

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/sidecar/certs"
)

func newCertsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make and show the certificates by which sidecars know each other",
	}
	group(cmd)
	cmd.AddCommand(newCertsCACmd(), newCertsLeafCmd(), newCertsShowCmd())
	return cmd
}

func newCertsCACmd() *cobra.Command {
	var dir, name string
	cmd := &cobra.Command{
		Use:   "ca --dir D",
		Short: "Make a cluster's CA: " + certs.CAFile + " and " + certs.CAKeyFile,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needed(cmd, "dir"); err != nil {
				return err
			}
			ca, err := certs.NewCA(name, time.Now())
			if err != nil {
				return err
			}
			if err := ca.Write(dir); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s (keep it secret)\n",
				filepath.Join(dir, certs.CAFile), filepath.Join(dir, certs.CAKeyFile))
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory to write to")
	cmd.Flags().StringVar(&name, "name", "baton", "common name of the CA")
	return cmd
}

func newCertsLeafCmd() *cobra.Command {
	var dir, out, control, admin string
	var id certs.Identity
	var c certs.LeafConfig
	cmd := &cobra.Command{
		Use:   "leaf --dir D {--cluster C --tenant T --group G --rank N | --control NAME | --admin NAME}",
		Short: "Make a certificate and key for one process, of the CA in --dir",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needed(cmd, "dir"); err != nil {
				return err
			}
			if err := alone(cmd); err != nil {
				return err
			}
			switch {
			case control != "":
				id = certs.Identity{Kind: certs.Control, Name: control}
			case admin != "":
				id = certs.Identity{Kind: certs.Admin, Name: admin}
			default:
				if err := needed(cmd, "cluster", "tenant", "group", "rank"); err != nil {
					return err
				}
				id.Kind = certs.Sidecar
			}
			if c.Life <= 0 {
				return &UsageError{Why: fmt.Sprintf("--life %v: want more than 0", c.Life)}
			}
			if !cmd.Flags().Changed("life") {
				c.Life = 0 // the CA's own end bounds the default
			}
			c.Identity, c.At = id, time.Now()
			return writeLeaf(cmd, dir, out, c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "directory that holds the CA, and gets the certificate")
	f.StringVar(&out, "out", "", "path of the files without .pem, from --dir on where it is not absolute; its directory must exist (default: from the identity)")
	f.StringVar(&id.Cluster, "cluster", "", "cluster of a sidecar")
	f.StringVar(&id.Tenant, "tenant", "", "tenant of a sidecar")
	f.StringVar(&id.Group, "group", "", "group of a sidecar")
	f.Int32Var(&id.Rank, "rank", 0, "rank of a sidecar")
	f.StringVar(&control, "control", "", "name of a control plane")
	f.StringVar(&admin, "admin", "", "name of an administrator")
	f.IPSliceVar(&c.IPs, "ip", nil, "addresses to put into the certificate")
	f.StringSliceVar(&c.DNS, "dns", nil, "host names to put into the certificate")
	f.DurationVar(&c.Life, "life", certs.DefaultLife, "how long it is valid")
	return cmd
}

func writeLeaf(cmd *cobra.Command, dir, out string, c certs.LeafConfig) error {
	ca, err := certs.ReadCA(dir)
	if err != nil {
		return &HintError{Err: err, Hint: "baton certs ca --dir " + dir + " makes a CA"}
	}
	leaf, err := ca.Leaf(c)
	if errors.Is(err, certs.ErrIdentity) || errors.Is(err, certs.ErrLife) {
		return &UsageError{Why: err.Error()}
	}
	if err != nil {
		return err
	}
	if out == "" {
		out = strings.ReplaceAll(c.Identity.String(), "/", "_")
	}
	if !filepath.IsAbs(out) {
		out = filepath.Join(dir, out)
	}
	cert, key := out+".pem", out+"-key.pem"
	if err := leaf.Write(cert, key); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s (keep it secret)\n", cert, key)
	return err
}

func newCertsShowCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "show FILE...",
		Short: "Say whom the certificates of PEM files name and how long they hold",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &UsageError{Why: "no FILE is given", Hint: cmd.UseLine()}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, path := range args {
				list, err := certs.ReadCerts(path)
				if err != nil {
					return err
				}
				if len(args) > 1 {
					fmt.Fprintf(cmd.OutOrStdout(), "%s:\n", path)
				}
				for _, c := range list {
					showCert(cmd.OutOrStdout(), c)
				}
			}
			return nil
		},
	}
}

func showCert(w io.Writer, c *x509.Certificate) {
	who := "CA " + c.Subject.CommonName
	if !c.IsCA {
		id, err := certs.IdentityOf(c)
		if who = string(id.Kind) + " " + id.String(); err != nil {
			who = err.Error()
		}
	}
	var names []string
	for _, ip := range c.IPAddresses {
		names = append(names, net.IP(ip).String())
	}
	names = append(names, c.DNSNames...)
	state := "valid"
	switch now := time.Now(); {
	case now.Before(c.NotBefore):
		state = "not valid yet"
	case now.After(c.NotAfter):
		state = "EXPIRED"
	}
	fmt.Fprintf(w, "%s\n  %s: %s to %s\n  issuer %s, serial %x\n", who, state,
		c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339), c.Issuer.CommonName, c.SerialNumber)
	if len(names) > 0 {
		fmt.Fprintf(w, "  addresses %s\n", strings.Join(names, ", "))
	}
}

// alone refuses flags of two kinds of identity.
func alone(cmd *cobra.Command) error {
	given := ""
	for _, n := range []string{"control", "admin", "cluster", "tenant", "group", "rank"} {
		if !cmd.Flags().Changed(n) {
			continue
		}
		if given != "" && (given == "control" || given == "admin") {
			return &UsageError{Why: fmt.Sprintf("--%s and --%s are both given: want one kind of identity", given, n), Hint: cmd.UseLine()}
		}
		given = n
	}
	return nil
}

// needed refuses a call that lacks one of the flags.
func needed(cmd *cobra.Command, names ...string) error {
	for _, n := range names {
		if !cmd.Flags().Changed(n) {
			return &UsageError{Why: "--" + n + " is missing", Hint: cmd.UseLine()}
		}
	}
	return nil
}
