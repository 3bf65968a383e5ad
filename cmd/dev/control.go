package dev

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/batonkv/baton/lifeline"
)

// ControlConfig is the name, in a run directory, of the configuration with which control
// planes reach the cluster: the keys of config.Control.
const ControlConfig = "control.yaml"

type controlFile struct {
	Cluster string `yaml:"cluster"`
	Etcd    struct {
		Endpoints []string `yaml:"endpoints"`
	} `yaml:"etcd"`
	TLS struct {
		CA   string `yaml:"ca"`
		Cert string `yaml:"cert"`
		Key  string `yaml:"key"`
	} `yaml:"tls"`
}

// writeControl is done when the cluster is up: who finds the file finds all of it.
func (c *Cluster) writeControl() error {
	f := controlFile{Cluster: cluster}
	f.Etcd.Endpoints = []string{c.Etcd}
	dir := filepath.Join(c.Dir, "certs")
	f.TLS.CA, f.TLS.Cert, f.TLS.Key = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "control.pem"), filepath.Join(dir, "control-key.pem")
	b, err := yaml.Marshal(f)
	if err != nil {
		return err
	}
	half := filepath.Join(c.Dir, "."+ControlConfig)
	if err := os.WriteFile(half, b, 0o600); err != nil {
		return err
	}
	return os.Rename(half, c.Control())
}

// Control is the path of the configuration with which control planes reach the cluster.
func (c *Cluster) Control() string { return filepath.Join(c.Dir, ControlConfig) }

// Found is a cluster of this user that is up on this machine.
type Found struct {
	Dir string
	PID int // of who brought it up
}

// Control is the path of the configuration with which control planes reach it.
func (f Found) Control() string { return filepath.Join(f.Dir, ControlConfig) }

// Find lists the clusters that this user has up on this machine, by directory.
func Find() ([]Found, error) {
	if err := checkOwn(root()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(root(), "run-*", ControlConfig))
	if err != nil {
		return nil, fmt.Errorf("run directories: %w", err)
	}
	var out []Found
	for _, f := range files {
		dir := filepath.Dir(f)
		b, err := os.ReadFile(filepath.Join(dir, ownerFile))
		var o owner
		if err == nil && json.Unmarshal(b, &o) == nil && lifeline.Alive(o.PID, o.Started) {
			out = append(out, Found{dir, o.PID})
		}
	}
	return out, nil
}
