package dev

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/control/client"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/sums"
)

// sidecarFile is the configuration that a dev sidecar gets: the keys of package
// config that are not its defaults.
type sidecarFile struct {
	Cluster  string         `yaml:"cluster"`
	Pool     string         `yaml:"pool"`
	Group    string         `yaml:"group"`
	Rank     int32          `yaml:"rank"`
	Role     discovery.Role `yaml:"role"`
	Tenant   string         `yaml:"tenant"`
	RunDir   string         `yaml:"run-dir"`
	Host     string         `yaml:"host,omitempty"`
	Listen   string         `yaml:"listen"`
	Metrics  string         `yaml:"metrics"`
	LogLevel string         `yaml:"log-level"`
	LogForm  string         `yaml:"log-format"`
	Lease    string         `yaml:"lease,omitempty"`
	Etcd     struct {
		Endpoints []string `yaml:"endpoints"`
		TTL       string   `yaml:"ttl,omitempty"`
	} `yaml:"etcd"`
	NATS struct {
		URLs []string `yaml:"urls"`
	} `yaml:"nats"`
	Verify string `yaml:"verify,omitempty"`
	Limits struct {
		Imports int32 `yaml:"imports,omitempty"`
	} `yaml:"limits,omitempty"`
	Staging struct {
		Transport string `yaml:"transport,omitempty"`
		When      string `yaml:"when,omitempty"`
	} `yaml:"staging,omitempty"`
	TLS struct {
		CA   string `yaml:"ca"`
		Cert string `yaml:"cert"`
		Key  string `yaml:"key"`
	} `yaml:"tls"`
	Adapters []adapterFile `yaml:"adapters,omitempty"`
}

// Adapters says which adapters a group has.
type Adapters func(g Group) []config.Adapter

// adapterFile is an adapter with its section as the file has it.
type adapterFile struct {
	config.Adapter `yaml:",inline"`
	Config         yaml.Node `yaml:"config,omitempty"`
}

// adapters are those of g for its file.
func (c *Cluster) adapters(g Group) (list []adapterFile, err error) {
	if c.opt.Adapters == nil {
		return nil, nil
	}
	for _, a := range c.opt.Adapters(g) {
		f := adapterFile{Adapter: a}
		var section yaml.Node
		if err := yaml.Unmarshal([]byte(a.Section), &section); err != nil {
			return nil, fmt.Errorf("adapter %s: %w", a.Name, err)
		}
		if len(section.Content) > 0 {
			f.Config = *section.Content[0]
		}
		list = append(list, f)
	}
	return list, nil
}

// sidecarConfig is its name in the rank's run directory.
const sidecarConfig = "sidecar.yaml"

func (c *Cluster) startSidecar(g Group, rank int32) (*lifeline.Child, error) {
	dir := c.rankDir(g, rank)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	host, at := "", net.JoinHostPort("127.0.0.1", "0")
	if p := c.place(g); p != nil {
		host, at = p.Host(), net.JoinHostPort(p.Addr(), "0")
	}
	f := sidecarFile{Cluster: cluster, Pool: pool, Group: g.Name, Rank: rank, Role: g.Role, Tenant: tenant,
		RunDir: dir, Host: host, Listen: at, Metrics: at, LogLevel: c.opt.LogLevel, LogForm: c.opt.LogFormat}
	f.Etcd.Endpoints, f.NATS.URLs = []string{c.Etcd}, []string{c.NATS}
	f.Verify, f.Limits.Imports = c.opt.Verify, c.opt.Imports
	if c.opt.Backend != Backends[0] {
		f.Staging.Transport = c.opt.Backend
		if host == "" {
			f.Staging.When = config.Always
		}
	}
	if c.opt.Lease > 0 {
		f.Lease = c.opt.Lease.String()
	}
	if c.opt.TTL > 0 {
		f.Etcd.TTL = c.opt.TTL.String()
	}
	f.TLS.CA = filepath.Join(c.Dir, "certs", "ca.pem")
	f.TLS.Cert, f.TLS.Key = c.certFiles(g, rank)
	var err error
	if f.Adapters, err = c.adapters(g); err != nil {
		return nil, err
	}
	b, err := yaml.Marshal(f)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, sidecarConfig)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return nil, err
	}
	return c.start(g, "sidecar", "--config", path)
}

// maxChunk is the most that an engine computes of a prompt in a step.
const maxChunk = 256

// startEngine starts one engine rank beside its sidecar. The ranks of a group meet in
// the directory of rank 0.
func (c *Cluster) startEngine(g *Running, rank int32, runDir string) (*lifeline.Child, error) {
	o := c.opt
	meet := c.rankDir(g.Group, 0)
	args := []string{"engine", "--group", g.Name, "--instance", strconv.FormatUint(g.Instance, 16),
		"--role", string(g.Role), "--rank", strconv.Itoa(int(rank)), "--tp", strconv.Itoa(int(g.TP)), "--run-dir", runDir, "--rendezvous", meet,
		"--model", o.Model, "--model-dir", o.ModelDir, "--seed", strconv.FormatUint(o.Seed, 10), "--blocks", strconv.Itoa(int(o.Blocks)),
		"--slots", strconv.Itoa(int(o.Slots)), "--block-tokens", strconv.Itoa(int(o.BlockTokens)), "--log-level", o.LogLevel, "--log-format", o.LogFormat}
	args = append(args, g.split()...)
	if rank == 0 {
		args = append(args, "--front", filepath.Join(meet, "front.sock"))
	}
	if o.Parts && g.Role != discovery.Decode {
		args = append(args, "--export-parts", "--chunk", strconv.Itoa(int(min(o.BlockTokens, maxChunk))))
	}
	if c := o.Damage(g.Role); c != "" {
		args = append(args, "--corrupt", c)
	}
	for _, t := range []struct {
		flag  string
		dtype layout.DType
	}{{"--kv", g.KV}, {"--conv", g.Conv}, {"--ssm", g.SSM}} {
		if t.dtype != 0 {
			args = append(args, t.flag, t.dtype.String())
		}
	}
	child, err := c.start(g.Group, args...)
	if err != nil {
		return nil, fmt.Errorf("engine %s/%d: %w", g.Name, rank, err)
	}
	return child, nil
}

// Damage is what the engines of a role are to damage: those of decode what they admit, and
// where sums are compared those of prefill what they exported, which tokens alone cannot tell
// from the former. The position is in no sum.
func (o Options) Damage(role discovery.Role) string {
	at := discovery.Decode
	if o.Verify != "" && o.Verify != sums.Off.String() && o.Corrupt != "position" {
		at = discovery.Prefill
	}
	if role != at {
		return ""
	}
	return o.Corrupt
}

// split is the flags that say how the group's ranks divide the model, tp aside.
func (g Group) split() (args []string) {
	for _, k := range []struct {
		flag string
		n    int32
	}{{"--pp", g.PP}, {"--ep", g.EP}, {"--expt-tp", g.ExptTP}} {
		if k.n > 1 {
			args = append(args, k.flag, strconv.Itoa(int(k.n)))
		}
	}
	for _, n := range g.Layers {
		args = append(args, "--layers", strconv.Itoa(n))
	}
	return args
}

// stopAll stops them side by side, and returns when all have ended.
func stopAll(ctx context.Context, cs []*lifeline.Child) {
	var wg sync.WaitGroup
	for _, c := range cs {
		if c != nil {
			wg.Go(func() { c.Stop(ctx) })
		}
	}
	wg.Wait()
}

// rosters dials each leader as a control plane and waits until its group is complete.
func (c *Cluster) rosters(ctx context.Context) error {
	for _, g := range c.Groups {
		var err error
		g.Leader, err = client.Dial(g.Ranks[0].Sidecar.Addr, c.ClientTLS(g.Name, 0))
		if err != nil {
			return err
		}
		for n, err := range g.Leader.Watch(ctx, control.Cursor{}) {
			if err != nil {
				return fmt.Errorf("group %s: watch its leader: %w", g.Name, err)
			}
			if n.Kind == control.Ready {
				break
			}
		}
	}
	return nil
}
