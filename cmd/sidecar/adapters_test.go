package sidecar

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/sidecar/handoff"
)

func TestBuiltInAdapters(t *testing.T) {
	for name, make := range BuiltIn {
		if i, err := make(slog.New(slog.DiscardHandler)).Register(t.Context()); err != nil || i.Check() != nil || i.Name != name {
			t.Errorf("%s: %+v, %v", name, i, err)
		}
	}
	check := func(rank int32, all ...config.Adapter) error {
		return checkAdapters(t.Context(), &config.Sidecar{Rank: rank, Adapters: all})
	}
	if err := check(0, config.Adapter{Name: "a", BuiltIn: "webhook", Section: "file: /f"}, config.Adapter{Name: "b", Command: []string{os.Args[0]}}); err != nil {
		t.Error(err)
	}
	err := check(1, config.Adapter{Name: "a", BuiltIn: "webhok"})
	if !errors.Is(err, config.ErrConfig) || !strings.Contains(err.Error(), `adapters.a.built-in: "webhok": want one of dynamo, webhook`) {
		t.Errorf("%v", err)
	}
	for name, c := range map[string]struct{ section, want string }{"webhook": {"file: f", "want an absolute path"}, "dynamo": {"namespace: n\ncalls: 0", "calls: 0: want 1"}} {
		bad := config.Adapter{Name: "a", BuiltIn: name, Section: c.section}
		if err := check(0, bad); !errors.Is(err, config.ErrConfig) || !errors.Is(err, handoff.ErrSection) || !strings.Contains(err.Error(), "adapters.a.config: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := check(1, bad); err != nil {
			t.Errorf("%s on a rank that starts no adapter: %v", name, err)
		}
	}
	gone := config.Adapter{Name: "a", Command: []string{"/nope/adapter"}}
	if err := check(0, gone); !errors.Is(err, config.ErrConfig) || !strings.Contains(err.Error(), "adapters.a.command: ") || !strings.Contains(err.Error(), "/nope/adapter") {
		t.Errorf("%v", err)
	}
	if err := check(1, gone); err != nil {
		t.Errorf("a rank that starts no adapter: %v", err)
	}
}
