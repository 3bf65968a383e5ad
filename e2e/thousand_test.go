package e2e

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/cmd/load"
	engine "github.com/batonkv/baton/examples/load"
	"github.com/batonkv/baton/internal/capture"
	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/transfer/staged/nixl"
)

// seed is of every random load here; BATON_SEED gives another.
func seed(t *testing.T) uint64 {
	s := os.Getenv("BATON_SEED")
	if s == "" {
		return 1
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("BATON_SEED %q: want a number", s)
	}
	return n
}

// thousand runs a load; its processes must not panic.
func thousand(t *testing.T, shards string, o load.Options) error {
	t.Helper()
	var err error
	if o.Dev.Groups, err = dev.ParseShards(shards); err != nil {
		t.Fatal(err)
	}
	said := &capture.Buffer{}
	o.Dev.Binary, o.Dev.Stderr, o.Dev.LogLevel, o.Seed = binary, said, "error", seed(t)
	err = load.Run(t.Context(), o, t.Output())
	if s := said.String(); strings.Contains(s, "panic:") || strings.Contains(s, "fatal error:") || strings.Contains(s, "DATA RACE") {
		t.Errorf("a process broke down:\n%s", s)
	}
	return err
}

// TestThousandRequests: requests of all kinds at once, between groups of unequal cuts,
// block sizes and memory layouts, in pools too small for them. What is admitted is
// compared element by element; in the end nothing is held anywhere. Movers are killed
// beside most of them, and sidecars beside some.
func TestThousandRequests(t *testing.T) {
	for _, c := range []struct {
		name, shards string
		o            load.Options
	}{
		{"hybrid", "tp=2,role=prefill+tp=1,role=decode+tp=2,role=decode", load.Options{Model: engine.Hybrid, Requests: 1000}},
		{"attention, movers killed", "tp=1,role=prefill+tp=2,role=decode+tp=1,role=decode", load.Options{Model: engine.Attention, Requests: 1000, AtOnce: 64, KillMovers: 12}},
		{"sidecars killed", "tp=2,role=prefill+tp=2,role=decode", load.Options{Model: engine.Hybrid, Requests: 300, AtOnce: 32, KillMovers: 2, KillSidecars: 3}},
		{"staged, movers killed", "tp=2,role=prefill+tp=1,role=decode", load.Options{Dev: dev.Options{Backend: "tcp"}, Model: engine.Hybrid, Requests: 300, KillMovers: 6}},
		{"by NIXL, movers killed", "tp=2,role=prefill+tp=1,role=decode", load.Options{Dev: dev.Options{Backend: "nixl"}, Model: engine.Hybrid, Requests: 300, KillMovers: 6}},
		{"more ranks than groups and heads", "tp=8,role=prefill+tp=1,role=decode", load.Options{Model: engine.Hybrid, Requests: 100, KillMovers: 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.o.Dev.Backend == "nixl" {
				t.Setenv(nixl.EnvLibrary, need.NIXL(t))
			}
			if err := thousand(t, c.shards, c.o); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestThousandNotices: one bit that is not as it was written fails the run.
func TestThousandNotices(t *testing.T) {
	err := thousand(t, "tp=1,role=prefill+tp=2,role=decode", load.Options{Requests: 20, Damage: true})
	if !errors.Is(err, load.ErrWrong) {
		t.Errorf("damaged imports gave %v", err)
	}
}
