package need

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// EnvPython names the Python that tests run; without it that is python3.
const EnvPython = "BATON_PYTHON"

// Python is a script that runs Python with gRPC and with the stubs of files at hand, which
// lie in the folder proto. Without grpcio-tools the test is skipped, "grpcio".
func Python(t testing.TB, proto string, files ...string) string {
	t.Helper()
	interpreter := os.Getenv(EnvPython)
	if interpreter == "" {
		interpreter = "python3"
	}
	stubs := t.TempDir()
	args := append([]string{"-m", "grpc_tools.protoc", "-I", proto, "--python_out", stubs, "--grpc_python_out", stubs}, files...)
	if b, err := exec.Command(interpreter, args...).CombinedOutput(); err != nil {
		Skip(t, "grpcio", "%s has no grpcio-tools (examples/hostplugin/python/requirements.txt; %s names another interpreter): %v: %s", interpreter, EnvPython, err, b)
	}
	script := filepath.Join(stubs, "python")
	text := "#!/bin/sh\nPYTHONPATH='" + stubs + "' exec '" + interpreter + "' \"$@\"\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return script
}
