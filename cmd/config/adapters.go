package config

import (
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/batonkv/baton/discovery"
)

// Adapter is one adapter of a sidecar's group: a program, or one that is built in. It is
// the one key that has no flag.
type Adapter struct {
	Name    string   `yaml:"name"`
	Command []string `yaml:"command,omitempty"`  // program and arguments; or:
	BuiltIn string   `yaml:"built-in,omitempty"` // name of one that baton has
	Section string   `yaml:"-"`                  // its own part, config, as YAML
}

// Bounds of adapters.
const (
	maxAdapters = 16
	maxCommand  = 64 // words
)

// adapters is the key of the list.
const adapters = "adapters"

var adapterKeys = []string{"name", "command", "built-in", "config"}

// adapters reads the list.
func (d *decoder) adapters(n *yaml.Node, to *[]Adapter) {
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxAdapters {
		d.fault(n, "%s: want a list of at most %d, such as - {name: mine, command: [/usr/bin/mine]}", adapters, maxAdapters)
		return
	}
	*to = nil
	for _, e := range n.Content {
		*to = append(*to, d.adapter(e))
	}
}

func (d *decoder) adapter(n *yaml.Node) (a Adapter) {
	if n.Kind != yaml.MappingNode {
		d.fault(n, "%s: want keys and values, of %s", adapters, strings.Join(adapterKeys, ", "))
		return a
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if seen[key.Value] {
			d.fault(key, "%s: %s: given twice: remove one", adapters, clip(key.Value))
			continue
		}
		seen[key.Value] = true
		switch key.Value {
		case "name":
			a.Name = d.word(value, "name")
		case "built-in":
			a.BuiltIn = d.word(value, "built-in")
		case "command":
			a.Command = d.words(value)
		case "config":
			a.Section = d.section(value)
		default:
			d.fault(key, "%s: unknown key %q: %s", adapters, clip(key.Value), want(clip(key.Value), adapterKeys))
		}
	}
	return a
}

// word is one text.
func (d *decoder) word(n *yaml.Node, field string) string {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || len(n.Value) > maxText {
		d.fault(n, "%s.%s: want one word of at most %d bytes", adapters, field, maxText)
		return ""
	}
	return n.Value
}

func (d *decoder) words(n *yaml.Node) (words []string) {
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxCommand {
		d.fault(n, "%s.command: want a list of at most %d words, such as [/usr/bin/mine, --verbose]", adapters, maxCommand)
		return nil
	}
	for _, e := range n.Content {
		words = append(words, d.word(e, "command"))
	}
	return words
}

// section is the adapter's own part, as it will read it: no anchor of the file leads out
// of it, which could make a small file a large section. Its own keys have a line each,
// which an adapter without a YAML library can read.
func (d *decoder) section(n *yaml.Node) string {
	if aliased(n) {
		d.fault(n, "%s.config: has an alias: write it out", adapters)
		return ""
	}
	n.Style &^= yaml.FlowStyle
	b, err := yaml.Marshal(n)
	if err != nil {
		d.fault(n, "%s.config: %v", adapters, err)
	}
	return string(b)
}

func aliased(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, aliased)
}

// adapters checks what the file says; which are built in is not this package's to know.
func (f *faults) adapters(all []Adapter) {
	for i, a := range all {
		if err := discovery.CheckName("name", a.Name); err != nil {
			f.add("adapters.name", "%q: want 1 to 63 of a-z, 0-9 and -, not at the ends", clip(a.Name))
		} else if slices.ContainsFunc(all[:i], func(b Adapter) bool { return a.Name == b.Name }) {
			f.add("adapters.name", "%q is given twice: want one name for each", a.Name)
		}
		switch {
		case len(a.Command) == 0 && a.BuiltIn == "":
			f.add("adapters."+clip(a.Name), "want a command, such as [/usr/bin/mine], or built-in")
		case len(a.Command) > 0 && a.BuiltIn != "":
			f.add("adapters."+clip(a.Name), "has a command and built-in: want one")
		case len(a.Command) > 0 && a.Command[0] == "":
			f.add("adapters."+clip(a.Name)+".command", "its program is empty")
		}
	}
}

// program makes a program that is named by a path relative to dir, as files are. It stays
// a path: a word alone would be looked up in PATH.
func (a *Adapter) program(dir string) {
	if len(a.Command) == 0 || !strings.ContainsRune(a.Command[0], filepath.Separator) || filepath.IsAbs(a.Command[0]) {
		return
	}
	p := filepath.Join(dir, a.Command[0])
	if !filepath.IsAbs(p) {
		p = "." + string(filepath.Separator) + p
	}
	a.Command[0] = p
}
