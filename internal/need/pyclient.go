package need

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// PyClient is a script that runs Python with the engines' client, its tests and what they need;
// root is the module's folder. Without numpy and gRPC the test is skipped, "pyclient".
func PyClient(t testing.TB, root string) string {
	t.Helper()
	client, err := filepath.Abs(filepath.Join(root, "sidecar", "engine", "python"))
	if err != nil {
		t.Fatal(err)
	}
	interpreter := os.Getenv(EnvPython)
	if interpreter == "" {
		interpreter = "python3"
	}
	script := filepath.Join(t.TempDir(), "python")
	text := "#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH='" + client + ":" + client + "/tests' exec '" + interpreter + "' \"$@\"\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	if b, err := exec.Command(script, "-c", "import numpy, baton").CombinedOutput(); err != nil {
		Skip(t, "pyclient", "%s lacks what the client's tests need (.ci/run python makes one that does not; %s names another): %v: %s", interpreter, EnvPython, err, b)
	}
	return script
}
