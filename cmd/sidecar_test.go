package cmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSidecarCheck: --check tells what a start would refuse, and starts nothing.
func TestSidecarCheck(t *testing.T) {
	dir := t.TempDir()
	for _, args := range []string{"certs ca --dir " + dir, "certs leaf --dir " + dir + " --cluster c --tenant default --group g --rank 0"} {
		if code, _, errs := runBaton(strings.Fields(args)...); code != 0 {
			t.Fatal(errs)
		}
	}
	file := filepath.Join(dir, "sidecar.yaml")
	check := func(more string) (int, string) {
		text := "cluster: c\npool: p\ngroup: g\nrun-dir: " + dir + "/run\netcd: {endpoints: ['http://127.0.0.1:1']}\n" +
			"tls: {ca: ca.pem, cert: c_default_g_0.pem, key: c_default_g_0-key.pem}\n" + more
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := runBaton("sidecar", "--config", file, "--check")
		return code, out + errs
	}
	for more, want := range map[string]string{
		"":        "nothing is wrong with the configuration of c/default/g/0",
		"rank: 1": "tls.cert is of c/default/g/0, this sidecar is c/default/g/1",
		"runk: 1": `unknown key "runk"`,
		"adapters: [{name: a, built-in: webhook, config: {file: f}}]": `file: "f": want an absolute path`,
	} {
		if code, said := check(more); !strings.Contains(said, want) || (code == 0) != (more == "") {
			t.Errorf("%s: %d %s", more, code, said)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "run")); !os.IsNotExist(err) {
		t.Errorf("the run directory: %v", err)
	}
}
