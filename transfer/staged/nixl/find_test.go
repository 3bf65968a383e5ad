package nixl

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonkv/baton/internal/need"
)

// wheel is a folder of site-packages with the files of wheels of NIXL, and their libraries.
func wheel(t *testing.T, names ...string) (dir string, libs []string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		lib := filepath.Join(dir, n, soname)
		if err := errors.Join(os.Mkdir(filepath.Dir(lib), 0o700), os.WriteFile(lib, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		libs = append(libs, lib)
	}
	return dir, libs
}

// TestFind: what is named first is taken, by its own path, and nothing else where it is not there.
func TestFind(t *testing.T) {
	dir, libs := wheel(t, ".nixl_cu12.mesonpy.libs", ".nixl_cu13.mesonpy.libs")
	link := filepath.Join(t.TempDir(), soname)
	if err := os.Symlink(libs[0], link); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	for name, c := range map[string]struct {
		library, env, python, ld string
		want                     string // "": none
	}{
		"named":                   {library: libs[0], env: "/nowhere", python: dir, want: libs[0]},
		"by a symbolic link":      {library: link, want: libs[0]},
		"named, not there":        {library: "/nowhere/" + soname, env: libs[0], python: dir},
		"relative":                {library: soname},
		"environment":             {env: libs[0], python: dir, want: libs[0]},
		"environment, not there":  {env: "/nowhere/" + soname, python: dir},
		"site-packages, newest":   {python: dir, ld: filepath.Dir(libs[0]), want: libs[1]},
		"site-packages without":   {python: empty, ld: filepath.Dir(libs[0])},
		"no such Python":          {python: "/nowhere/python"},
		"loader's path":           {ld: empty + ":relative:" + filepath.Dir(libs[0]), want: libs[0]},
		"loader's path by a link": {ld: filepath.Dir(link), want: libs[0]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(EnvLibrary, c.env)
			t.Setenv("LD_LIBRARY_PATH", c.ld)
			got, err := Find(t.Context(), c.library, c.python)
			if got != c.want || (err != nil) != (c.want == "") || err != nil && !errors.Is(err, ErrLibrary) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// TestFindByPython: an interpreter is asked where its packages are.
func TestFindByPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		need.Skip(t, "python", "no python3: %v", err)
	}
	dir, libs := wheel(t, ".nixl_cu13.mesonpy.libs")
	t.Setenv(EnvLibrary, "")
	t.Setenv("PYTHONPATH", dir)
	if got, err := Find(t.Context(), "", python); err != nil || got != libs[0] {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestSettings: what must be set before the library is opened is set, and what the user has
// set is kept.
func TestSettings(t *testing.T) {
	for _, s := range settings {
		t.Setenv(s[0], "") // restored behind the test
		if err := os.Unsetenv(s[0]); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("UCX_MODULES", "^ib")
	if err := prepare(); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UCX_MODULES") != "^ib" || os.Getenv("UCX_DEBUG_SIGNO") != "0" || os.Getenv("NIXL_CONFIG_FILE") != "/dev/null" {
		t.Error(strings.Join(os.Environ(), "\n"))
	}
}

func TestOptions(t *testing.T) {
	if err := DefaultOptions().Check(); err != nil {
		t.Error(err)
	}
	for name, o := range map[string]Options{
		"relative library": {Library: soname, Backend: "UCX"},
		"relative python":  {Python: "python3", Backend: "UCX"},
		"no backend":       {},
		"backend, a path":  {Backend: "../UCX"},
		"backend, long":    {Backend: strings.Repeat("U", maxBackend+1)},
		"backend, bytes":   {Backend: "\xff"},
		"no value":         {Backend: "UCX", Params: []string{"device_list"}},
		"no key":           {Backend: "UCX", Params: []string{"=1"}},
		"twice":            {Backend: "UCX", Params: []string{"a=1", "a=2"}},
		"a NUL":            {Backend: "UCX", Params: []string{"a=1\x00"}},
	} {
		if err := o.Check(); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
