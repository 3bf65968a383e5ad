package e2e

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// TestDemoVerifies: sums of equal bytes are equal, however they travel and are cut; what changes
// in a source's memory after it was exported fails its import by the sum's name.
func TestDemoVerifies(t *testing.T) {
	for _, c := range []struct {
		args string
		say  []string
	}{
		{"--verify=all --new=4", []string{"are EQUAL"}},
		{"--verify=sample --new=4 --disagg-kv-transport-backend=tcp --model=mla --inference-shards=tp=1,role=prefill+tp=2,role=decode", []string{"are EQUAL"}},
		{"--verify=all --corrupt=one-block", []string{"checksums differ: rank 0: state attn.k layer 0 unit 0 tokens [0,1) is not what source rank 0 exported", "the import fails"}},
		{"--verify=all --corrupt=state --disagg-kv-transport-backend=tcp", []string{"checksums differ: rank 0: state conv.x layer 0 unit 0 is not what source rank 0 exported"}},
		{"--verify=all --corrupt=position --new=4", []string{"NOT EQUAL"}}, // which is in no sum
	} {
		out, err := exec.CommandContext(bounded(t), binary, append([]string{"demo"}, strings.Fields(c.args)...)...).CombinedOutput()
		for _, say := range c.say {
			if (err != nil) != strings.Contains(c.args, "corrupt") || !strings.Contains(string(out), say) {
				t.Errorf("demo %s: %v, want %q in\n%s", c.args, err, say, out)
			}
		}
	}
}

// TestDemoDecodes: sampled tokens with their logprobs, several answers of one export and
// drafts go on across real sidecars as on one engine, and damage shows in them.
func TestDemoDecodes(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		say  []string
	}{
		{"--sample --new=12", 0, []string{"7 of 7 requests"}},
		{"--sample --answers=3 --model=mtp --inference-shards=tp=2,pp=2,role=prefill+tp=1,role=decode", 0, []string{"tokens were drafted", "21 hand-offs", "21 of 21 answers"}},
		{"--answers=2 --model=attention --new=6", 0, []string{"14 of 14 answers"}},
		{"--sample --model=mtp --corrupt=state", 1, []string{"NOT EQUAL from token"}},
	} {
		out, err := exec.CommandContext(bounded(t), binary, append([]string{"demo"}, strings.Fields(c.args)...)...).CombinedOutput()
		code := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		for _, say := range append(c.say, "0 prompt tokens computed again") {
			if code != c.code || !strings.Contains(string(out), say) {
				t.Errorf("demo %s: exit code %d, want %d and %q in\n%s", c.args, code, c.code, say, out)
			}
		}
	}
}
