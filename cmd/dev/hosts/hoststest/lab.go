// Package hoststest runs tests that need hosts.
package hoststest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/batonkv/baton/cmd/dev/hosts"
	"github.com/batonkv/baton/internal/need"
)

// what is the need's name.
const what = "netns"

const envLab = "BATON_TEST_LAB"

// Lab reports whether the test is in a network of its own. Where it is not, it is run once
// more, there, as a process that has env besides this one's, and is over with that here. A
// machine that has no such networks for this user skips it, "netns".
func Lab(t *testing.T, env ...string) bool {
	t.Helper()
	if os.Getenv(envLab) != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(append(os.Environ(), envLab+"=1", need.Env+"="), env...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	hosts.Isolate(cmd)
	err := cmd.Start()
	if err != nil {
		need.Skip(t, what, "a network of its own: %v", err)
	}
	switch err = cmd.Wait(); {
	case err != nil:
		t.Errorf("in a network of its own: %v\n%s", err, said.String())
	case bytes.Contains(said.Bytes(), []byte("--- SKIP")):
		need.Skip(t, what, "%s", said.String())
	case testing.Verbose():
		t.Log(said.String())
	}
	return false
}

// New makes hosts until the end of the test, which is in a Lab.
func New(t *testing.T, c hosts.Config) *hosts.Net {
	t.Helper()
	n, err := hosts.New(t.Context(), c)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) || errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}
