package nixl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Options is the nixl section of a configuration.
type Options struct {
	Library string   `yaml:"library" help:"absolute path of libnixl_capi.so (default: $BATON_NIXL_CAPI, then python's, then what the system's loader finds)"`
	Python  string   `yaml:"python" help:"absolute path of a Python, or of its site-packages, whose wheel of NIXL is used"`
	Backend string   `yaml:"backend" help:"NIXL's plugin that moves bytes"`
	Params  []string `yaml:"params" help:"KEY=VALUE for the plugin, such as device_list=mlx5_0"`
}

// maxBackend bounds a backend's name in bytes: peers hear it in their greeting.
const maxBackend = 64

// DefaultOptions takes the library where it is found.
func DefaultOptions() Options { return Options{Backend: DefaultBackend} }

// Check says every fault, each with its field and remedy; the errors are ErrConfig.
func (o Options) Check() error {
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...)))
	}
	for _, p := range []struct{ field, path string }{{"library", o.Library}, {"python", o.Python}} {
		if p.path != "" && !filepath.IsAbs(p.path) || strings.ContainsRune(p.path, 0) {
			fault("%s: %q: want an absolute path", p.field, p.path)
		}
	}
	if o.Backend == "" || len(o.Backend) > maxBackend || !utf8.ValidString(o.Backend) || strings.ContainsAny(o.Backend, "\x00/") {
		fault("backend: %q: want a plugin of NIXL, such as %s", o.Backend, DefaultBackend)
	}
	if _, err := o.params(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// params are those of the backend by name.
func (o Options) params() (map[string]string, error) {
	out := map[string]string{}
	for i, p := range o.Params {
		k, v, ok := strings.Cut(p, "=")
		if _, twice := out[k]; !ok || k == "" || twice || strings.ContainsRune(p, 0) {
			return nil, fmt.Errorf("%w: params[%d]: %q: want KEY=VALUE, each key once", ErrConfig, i, p)
		}
		out[k] = v
	}
	return out, nil
}

// Named says whether somebody named the library or its Python, here or in $BATON_NIXL_CAPI.
func (o Options) Named() bool {
	return o.Library != "" || o.Python != "" || os.Getenv(EnvLibrary) != ""
}

// Found is o with the path of the library that Find finds, for a process that looks no further.
func (o Options) Found(ctx context.Context) (Options, error) {
	path, err := Find(ctx, o.Library, o.Python)
	o.Library, o.Python = path, ""
	return o, err
}
