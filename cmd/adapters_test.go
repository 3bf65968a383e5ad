package cmd

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/config"
)

func TestBuiltInAdapters(t *testing.T) {
	for name, make := range builtIn {
		if i, err := make(slog.New(slog.DiscardHandler)).Register(t.Context()); err != nil || i.Check() != nil || i.Name != name {
			t.Errorf("%s: %+v, %v", name, i, err)
		}
	}
	if err := checkAdapters([]config.Adapter{{Name: "a", BuiltIn: "webhook"}, {Name: "b", Command: []string{"x"}}}); err != nil {
		t.Error(err)
	}
	err := checkAdapters([]config.Adapter{{Name: "a", BuiltIn: "webhok"}})
	if !errors.Is(err, config.ErrConfig) || !strings.Contains(err.Error(), `adapters.a.built-in: "webhok": want one of dynamo, webhook`) {
		t.Errorf("%v", err)
	}
}
