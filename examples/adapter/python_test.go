package main

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/batonkv/baton/examples/adapter/webhook"
	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/plugins/adapter/child"
	"github.com/batonkv/baton/plugins/plugintest"
)

// TestPython holds the adapter in Python to the suite of every adapter.
func TestPython(t *testing.T) {
	python := need.Python(t, "../../proto", "common/v1/common.proto", "control/v1/control.proto", "adapter/v1/adapter.proto")
	plugintest.Run(t, func(t *testing.T) plugintest.Subject {
		file := filepath.Join(t.TempDir(), "state.json")
		return plugintest.Subject{
			Open:    child.Open([]string{python, "python/file_adapter.py"}, "", slog.New(slog.NewTextHandler(t.Output(), nil))),
			Section: []byte("file: " + file),
			Bad:     [][]byte{nil, []byte("file: here"), []byte("fiel: /x"), {0xff, 0xfe}, []byte("file: /x\nurl: /y")},
			Shows: func(t *testing.T) map[string]string {
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				var e webhook.Event
				if err := json.Unmarshal(b, &e); err != nil {
					t.Fatal(err)
				}
				return e.Handoffs
			}}
	})
}
