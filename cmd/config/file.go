package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Bounds of a file.
const (
	maxFile = 1 << 20
	maxList = 256
	maxKeys = 1024
)

// Keys is a configuration with its keys: a pointer to a Sidecar or a Control.
type Keys interface {
	Check() error
	// files are the values that name files.
	files() []*string
}

// Load fills c from the file at path ("" for none) and then again from the flags that
// were given, which Bind bound to c, and checks the whole.
func Load(path string, flags *pflag.FlagSet, c Keys) error {
	given := map[string]string{}
	flags.Visit(func(f *pflag.Flag) { given[f.Name] = f.Value.String() })
	if path != "" {
		if err := readFile(path, c); err != nil {
			return err
		}
		locate(c, filepath.Dir(path))
		if s, ok := c.(*Sidecar); ok {
			for i := range s.Adapters {
				s.Adapters[i].program(filepath.Dir(path))
			}
		}
	}
	keys, _ := fields(c)
	for _, k := range keys {
		text, ok := given[k.name]
		if !ok {
			continue
		}
		if err := k.Set(text); err != nil {
			return fmt.Errorf("%w: --%s: %w", ErrConfig, k.name, err)
		}
	}
	return c.Check()
}

// locate makes the files that a configuration file names relative to it, wherever the
// process runs.
func locate(c Keys, dir string) {
	for _, f := range c.files() {
		if *f != "" && !filepath.IsAbs(*f) {
			*f = filepath.Join(dir, *f)
		}
	}
}

func (c *Sidecar) files() []*string {
	return []*string{&c.TLS.CA, &c.TLS.Cert, &c.TLS.Key, &c.Etcd.TLS.CA, &c.Etcd.TLS.Cert, &c.Etcd.TLS.Key,
		&c.NATS.TLS.CA, &c.NATS.TLS.Cert, &c.NATS.TLS.Key, &c.NATS.NKeySeed, &c.NATS.Credentials}
}

func readFile(path string, c Keys) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w: %w: name a file that can be read", ErrConfig, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := Decode(b, c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Decode fills c from YAML: keys that it does not know, values of a wrong type and
// keys given twice are faults that name the line. All faults are told. It does not
// Check what it read.
func Decode(b []byte, c Keys) error {
	if len(b) > maxFile {
		return fmt.Errorf("%w: the file is larger than %d bytes", ErrConfig, maxFile)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return fmt.Errorf("%w: not YAML: %w", ErrConfig, err)
	}
	if doc.Kind == 0 || len(doc.Content) == 0 {
		return nil
	}
	keys, sections := fields(c)
	d := decoder{keys: map[string]*field{}, sections: map[string]bool{}, seen: map[string]int{}}
	for _, k := range keys {
		d.keys[k.name] = k
		d.names = append(d.names, k.name)
	}
	for _, s := range sections {
		d.sections[s] = true
		d.names = append(d.names, s)
	}
	if s, ok := c.(*Sidecar); ok {
		d.speakers, d.names = &s.Adapters, append(d.names, adapters)
	} else {
		d.alien = ofSidecars()
	}
	d.mapping(doc.Content[0], "")
	if len(d.strangers) > 0 {
		d.errs = append([]error{fmt.Errorf("%w: this is a sidecar's file, which has %s: want a control plane's, with cluster, "+
			"etcd or addr, and in tls a certificate that baton certs leaf --control NAME makes", ErrConfig, strings.Join(d.strangers[:min(len(d.strangers), 3)], ", "))}, d.errs...)
	}
	return errors.Join(d.errs...)
}

// ofSidecars are the keys and sections at the top of a sidecar's file.
func ofSidecars() map[string]bool {
	keys, sections := fields(&Sidecar{})
	top := map[string]bool{adapters: true}
	for _, k := range keys {
		top[k.name] = !strings.Contains(k.name, ".")
	}
	for _, s := range sections {
		top[s] = !strings.Contains(s, ".")
	}
	return top
}

type decoder struct {
	keys     map[string]*field
	sections map[string]bool
	names    []string       // of keys and sections
	speakers *[]Adapter     // nil: it has none
	seen     map[string]int // line of each key
	errs     []error

	alien     map[string]bool // keys of the other kind of configuration
	strangers []string        // those of them that were met
}

func (d *decoder) fault(n *yaml.Node, format string, args ...any) {
	d.errs = append(d.errs, fmt.Errorf("%w: line %d: %s", ErrConfig, n.Line, fmt.Sprintf(format, args...)))
}

func (d *decoder) mapping(n *yaml.Node, prefix string) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // a section with nothing under it
	}
	if n.Kind != yaml.MappingNode {
		if prefix == "" {
			d.fault(n, "want keys and values, such as cluster: prod")
		} else {
			d.fault(n, "%s: want keys and values under it", prefix[:len(prefix)-1])
		}
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if len(d.seen) >= maxKeys {
			d.fault(n, "more than %d keys", maxKeys)
			return
		}
		key, value := n.Content[i], n.Content[i+1]
		name := prefix + clip(key.Value)
		if line, twice := d.seen[name]; twice {
			d.fault(key, "%s: given twice, first in line %d: remove one", name, line)
			continue
		}
		d.seen[name] = key.Line
		switch {
		case name == adapters && d.speakers != nil:
			d.adapters(value, d.speakers)
		case d.sections[name]:
			d.mapping(value, name+".")
		case d.keys[name] != nil:
			d.value(value, d.keys[name])
		case d.alien[name]:
			d.strangers = append(d.strangers, name)
		default:
			d.unknown(key, name)
		}
	}
}

func (d *decoder) unknown(key *yaml.Node, name string) {
	hint, near := "", Nearest(name, d.names)
	for _, known := range d.names { // a key that stands outside of its section
		if near == "" && strings.HasSuffix(known, "."+name) {
			near = known
		}
	}
	if near != "" {
		hint = fmt.Sprintf(": did you mean %q?", near)
	}
	d.fault(key, "unknown key %q%s", name, hint)
}

func (d *decoder) value(n *yaml.Node, f *field) {
	if f.list() {
		d.list(n, f)
		return
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		d.fault(n, "%s: want one %s", f.name, f.Type())
		return
	}
	if err := f.set(n.Value); err != nil {
		d.fault(n, "%s: %v", f.name, err)
	}
}

func (d *decoder) list(n *yaml.Node, f *field) {
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxList {
		d.fault(n, "%s: want a list of at most %d, such as [a, b]", f.name, maxList)
		return
	}
	words := make([]string, 0, len(n.Content))
	for _, e := range n.Content {
		if e.Kind != yaml.ScalarNode || e.Tag == "!!null" || len(e.Value) > maxText {
			d.fault(e, "%s: want a list of words", f.name)
			return
		}
		words = append(words, e.Value)
	}
	f.setList(words)
}

// clip keeps bytes from outside short in an error.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
