package cmd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
)

// TestEngineRanks runs two ranks over sockets, without sidecars, and asks rank 0.
func TestEngineRanks(t *testing.T) {
	dir := t.TempDir()
	sock := filepath.Join(dir, "front.sock")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, args := range [][]string{{"--rank", "0", "--front", sock}, {"--rank", "1"}} {
		cmd := newEngineCmd()
		cmd.SetArgs(append(args, "--group", "g", "--instance", "abc", "--tp", "2", "--rendezvous", dir, "--blocks", "16", "--seed", "5",
			"--shapes", "4/1/1,8/0/8", "--step-log", filepath.Join(dir, "steps."+args[1])))
		wg.Go(func() {
			if err := cmd.ExecuteContext(ctx); err != nil {
				t.Errorf("%v: %v", args, err)
				cancel()
			}
		})
	}
	c, err := front.Dial(ctx, sock)
	for err != nil && ctx.Err() == nil { // it listens once both ranks have met
		c, err = front.Dial(ctx, sock)
	}
	if err != nil {
		t.Fatal(err)
	}
	prompt := []int32{model.BOS, 72, 105}
	var got []int32
	res, err := c.Generate(ctx, front.Request{Tokens: prompt, MaxNew: 8, Mode: front.Full}, func(t int32) { got = append(got, t) })
	if err != nil {
		t.Fatal(err)
	}
	want, err := engine.Reference(ctx, engine.Config{Model: model.Hybrid(5), BlockTokens: 16}, prompt, 8)
	if err != nil || !slices.Equal(got, want) || res.Forwarded != 3 {
		t.Fatalf("%v %+v, want %v %v", got, res, want, err)
	}
	log, err := os.ReadFile(filepath.Join(dir, "steps.0"))
	if err != nil || !strings.Contains(string(log), `"ran":"[4 tokens, 1 prefills, 1 decodes]"`) || !strings.Contains(string(log), `"ran":"[8 tokens, 0 prefills, 8 decodes]"`) {
		t.Errorf("the step log says %s, %v", log, err)
	}
}

func TestEngineRefuses(t *testing.T) {
	good := []string{"--group", "g", "--instance", "1"}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--tp", "3"}, "tp 3 does not divide 4 units of query heads"},
		{[]string{"--model", "dense"}, "want " + model.Names()},
		{[]string{"--model-dir", "none"}, "config.json"},
		{[]string{"--instance", "xyz"}, "instance"},
		{[]string{"--corrupt", "all"}, "want kv, state"},
		{[]string{"--rank", "1", "--tp", "2", "--front", "x"}, "only rank 0"},
		{[]string{"--blocks", "0"}, "blocks"},
		{[]string{"--kv", "fp64"}, "--kv: "},
		{[]string{"--role", "decode", "--prefix-cache=false"}, "--prefix-cache=false"},
		{[]string{"--role", "router"}, "want prefill, decode or both"},
		{[]string{"--shapes", "64/1/4,8"}, "want TOKENS/PREFILLS/DECODES"},
		{[]string{"--chunk", "1000"}, "want 1 to 256"},
		{[]string{"--ssm", "fp16"}, "want fp32 or bf16"},
	} {
		cmd := newEngineCmd()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append(slices.Clone(good), c.args...))
		err := cmd.ExecuteContext(t.Context())
		var usage *UsageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}
