package cmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// runBaton is one call of the command line.
func runBaton(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Execute(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestCerts(t *testing.T) {
	dir := t.TempDir()
	if code, _, errs := runBaton("certs", "leaf", "--dir", dir, "--admin", "ann"); code != 1 || !strings.Contains(errs, "hint: baton certs ca") {
		t.Errorf("a leaf without a CA: %d %s", code, errs)
	}
	if code, out, errs := runBaton("certs", "ca", "--dir", dir); code != 0 || !strings.Contains(out, "ca-key.pem") {
		t.Fatalf("%d %s", code, errs)
	}
	if code, _, errs := runBaton("certs", "ca", "--dir", dir); code != 1 || !strings.Contains(errs, "exists") {
		t.Errorf("a second CA: %d %s", code, errs)
	}
	sidecar := []string{"certs", "leaf", "--dir", dir, "--cluster", "c", "--tenant", "t", "--group", "g", "--rank", "0", "--ip", "10.0.0.1", "--dns", "node-1"}
	if code, _, errs := runBaton(sidecar...); code != 0 {
		t.Fatalf("%d %s", code, errs)
	}
	if st, err := os.Stat(filepath.Join(dir, "c_t_g_0-key.pem")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	code, out, errs := runBaton("certs", "show", filepath.Join(dir, "c_t_g_0.pem"))
	for _, want := range []string{"sidecar c/t/g/0", "valid: ", "issuer baton", "10.0.0.1, node-1"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("show lacks %q: %d %s %s", want, code, out, errs)
		}
	}
	if code, out, _ := runBaton("certs", "show", filepath.Join(dir, "ca.pem"), filepath.Join(dir, "c_t_g_0.pem")); code != 0 || !strings.Contains(out, "c_t_g_0.pem:") {
		t.Errorf("show two: %d %s", code, out)
	}
	if code, _, errs := runBaton("certs", "leaf", "--dir", dir, "--admin", "ann", "--out", "no/such"); code != 1 || !strings.Contains(errs, "no such file") {
		t.Errorf("a directory that is not there: %d %s", code, errs)
	}
	if code, _, errs := runBaton("certs", "show", filepath.Join(dir, "ca-key.pem")); code != 1 || !strings.Contains(errs, "holds a private key and no certificate") {
		t.Errorf("show a key: %d %s", code, errs)
	}
	if code, out, _ := runBaton("certs", "show", filepath.Join(dir, "ca.pem")); code != 0 || !strings.Contains(out, "CA baton") {
		t.Errorf("show the CA: %d %s", code, out)
	}
}

func TestCertsUsage(t *testing.T) {
	dir := t.TempDir()
	if code, _, errs := runBaton("certs", "ca", "--dir", dir); code != 0 {
		t.Fatal(errs)
	}
	for want, args := range map[string]string{
		"--dir is missing":                       "ca",
		"--rank is missing":                      "leaf --dir " + dir + " --cluster c --tenant t --group g",
		"group \"G\"":                            "leaf --dir " + dir + " --cluster c --tenant t --group G --rank 0",
		"--life -5h0m0s: want more than 0":       "leaf --dir " + dir + " --admin b --life -5h",
		"the CA itself ends at":                  "leaf --dir " + dir + " --admin b --life 999999h",
		`host name "10.0.0.7": ends in a number`: "leaf --dir " + dir + " --admin b --dns 10.0.0.7",
		`host name "-a..b"`:                      "leaf --dir " + dir + " --admin b --dns localhost,-a..b",
		"--control and --group":                  "leaf --dir " + dir + " --control a --group b",
		"both given":                             "leaf --dir " + dir + " --control a --admin b",
		"no FILE is given":                       "show",
		`did you mean "--tenant"?`:               "leaf --tennant x",
	} {
		code, _, errs := runBaton(append([]string{"certs"}, strings.Fields(args)...)...)
		if code != 2 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %q lacks %q", args, code, errs, want)
		}
	}
}
