package cmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
)

// TestDevAdapters: what is wrong with --adapter is told before anything starts.
func TestDevAdapters(t *testing.T) {
	good, bad := filepath.Join(t.TempDir(), "good.yaml"), filepath.Join(t.TempDir(), "bad.yaml")
	for file, text := range map[string]string{good: "namespace: dynamo\ndiscovery: file\nfolder: /x\n", bad: "namespace: a..b\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	adapters, err := devAdapters(t.Context(), []string{"dynamo=" + good})
	if err != nil {
		t.Fatal(err)
	}
	if got := adapters(dev.Group{}); len(got) != 1 || got[0].BuiltIn != "dynamo" || !strings.Contains(got[0].Section, "folder: /x") {
		t.Errorf("%+v", got)
	}
	for given, want := range map[string]string{"dynamo": "want NAME=FILE", "dinamo=" + good: "one of dynamo, webhook", "dynamo=" + good + "x": "no such file", "dynamo=" + bad: `namespace "a..b"`} {
		if _, err := devAdapters(t.Context(), []string{given}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", given, err, want)
		}
	}
	if _, err := devAdapters(t.Context(), []string{"dynamo=" + good, "dynamo=" + good}); err == nil || !strings.Contains(err.Error(), "dynamo is given twice") {
		t.Error(err)
	}
}
