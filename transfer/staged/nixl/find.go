package nixl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// EnvLibrary names the library where the configuration does not.
const EnvLibrary = "BATON_NIXL_CAPI"

const soname = "libnixl_capi.so"

// Find is the absolute path of the library, free of symbolic links, since the library finds the
// rest of NIXL beside its own file. It is the file that is named, or $BATON_NIXL_CAPI, or
// that of the wheel which a Python has, the path of its interpreter or of its
// site-packages, or what the system's loader would find. What is named and is not there
// is an error, and nothing else is tried. Nothing is loaded.
func Find(ctx context.Context, library, python string) (string, error) {
	switch env := os.Getenv(EnvLibrary); {
	case library != "":
		return resolve(library)
	case env != "":
		path, err := resolve(env)
		if err != nil {
			return "", fmt.Errorf("%s: %w", EnvLibrary, err)
		}
		return path, nil
	case python != "":
		return inPython(ctx, python)
	}
	if path := inLoader(ctx); path != "" {
		return resolve(path)
	}
	return "", fmt.Errorf("%w: no %s: name the file, or a Python that has NIXL (pip install --no-deps nixl-cu13), or set %s", ErrLibrary, soname, EnvLibrary)
}

func resolve(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%w: %q is no absolute path", ErrLibrary, path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrLibrary, path, err)
	}
	return real, nil
}

// inPython looks for a wheel: a folder of site-packages is looked at, an interpreter asked.
func inPython(ctx context.Context, python string) (string, error) {
	dirs := []string{python}
	if st, err := os.Stat(python); err != nil || !st.IsDir() {
		ctx, stop := context.WithTimeout(ctx, 10*time.Second)
		defer stop()
		out, err := exec.CommandContext(ctx, python, "-c", "import sys; print('\\n'.join(sys.path))").Output()
		if err != nil {
			return "", fmt.Errorf("%w: python %s: %w: want an interpreter, or a folder of site-packages", ErrLibrary, python, err)
		}
		dirs = strings.Split(string(out), "\n")
	}
	for _, d := range dirs {
		if d == "" {
			continue
		}
		// .nixl_cu13.mesonpy.libs; of two wheels the one for the newer CUDA
		found, err := filepath.Glob(filepath.Join(d, ".nixl*.mesonpy.libs", soname))
		if err != nil || len(found) == 0 {
			continue
		}
		slices.Sort(found)
		abs, err := filepath.Abs(found[len(found)-1])
		if err != nil {
			return "", err
		}
		return resolve(abs)
	}
	return "", fmt.Errorf("%w: python %s has no wheel of NIXL: pip install --no-deps nixl-cu13", ErrLibrary, python)
}

// inLoader is where the system's loader looks: LD_LIBRARY_PATH, then its cache.
func inLoader(ctx context.Context) string {
	for _, d := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		if path := filepath.Join(d, soname); filepath.IsAbs(path) {
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	out, err := exec.CommandContext(ctx, "/sbin/ldconfig", "-p").Output()
	if err != nil {
		return "" // a system without a cache
	}
	for line := range strings.Lines(string(out)) {
		if name, path, ok := strings.Cut(strings.TrimSpace(line), " => "); ok && strings.HasPrefix(name, soname+" ") {
			return path
		}
	}
	return ""
}

// settings are what NIXL and UCX read when they are loaded, and what the user has set goes first:
// UCX takes SIGHUP without an alternate stack unless told not to, EFA's module brings a second
// libnl that crashes in exit, a home directory that cannot be read fails every agent, and faults
// are Go's to report.
var settings = [][2]string{{"UCX_DEBUG_SIGNO", "0"}, {"UCX_MODULES", "^efa"}, {"UCX_HANDLE_ERRORS", "none"}, {"NIXL_CONFIG_FILE", "/dev/null"}}

// prepare sets them.
func prepare() error {
	for _, s := range settings {
		if _, set := os.LookupEnv(s[0]); set {
			continue
		}
		if err := os.Setenv(s[0], s[1]); err != nil {
			return errors.Join(ErrLibrary, err)
		}
	}
	return nil
}
