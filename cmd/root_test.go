package cmd

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/config"
)

// calls are command lines, what they end with and what they say.
var calls = []struct {
	args   string
	code   int
	stdout string
	stderr []string
}{
	{"version", 0, "baton ", nil},
	{"--version", 0, "baton ", nil},
	{"--help", 0, "Usage:", nil},
	{"completion bash", 0, "bash completion", nil},
	{"certs", 0, "Usage:", nil},
	{"certs leef", 2, "", []string{`unknown command "leef" for "baton certs": did you mean "leaf"?`}},
	{"verison", 2, "", []string{`baton: unknown command "verison" for "baton": did you mean "version"?`, "hint: "}},
	{"zzzzzzzzz", 2, "", []string{`unknown command "zzzzzzzzz"`}},
	{"version --log-levle info", 2, "", []string{`unknown flag --log-levle for "baton version": did you mean "--log-level"?`}},
	{"version --log-level loud", 2, "", []string{`log-level: "loud": want one of debug, info, warn, error`}},
	{"version --log-format jsno", 2, "", []string{`did you mean "json"?`}},
	{"version please", 2, "", []string{`unexpected word "please"`}},
	{"help version", 0, "Print the version", nil},
	{"help", 0, "Usage:", nil},
	{"help verison", 2, "", []string{`unknown command "verison" for "baton": did you mean "version"?`}},
	{"help certs leef", 2, "", []string{`unknown command "leef"`, `"leaf"`}},
	{"dev --seed x", 2, "", []string{`--seed: "x": want a whole number from 0`}},
	{"dev --block 99999999999", 2, "", []string{`--block: "99999999999": too large`}},
	{"dev --block 65536", 2, "", []string{"--block 65536: want 1 to 1024"}},
	{"dev --disagg-kv-transport-backend nccl", 2, "", []string{`"nccl"`}},
	{"doctor -o yaml", 2, "", []string{`--output "yaml": want text or json`}},
	{"doctor Foo_", 2, "", []string{`"Foo_" is no name of a group`}},
	{"demo --deadline 5", 2, "", []string{`--deadline: "5": want a duration such as 30s`}},
	{"demo --deadline 5ms", 2, "", []string{`--deadline 5ms: want 100ms`}},
	{"demo --new 4097", 2, "", []string{`--new 4097: want 1 to 4096`}},
	{"demo --inference-shards tp=1,role=prefill", 2, "", []string{"a prefill and a decode group"}},
	{"demo --kill=", 2, "", []string{`--kill "": is empty: name one, or leave the flag out`}},
	{"demo --corrupt=", 2, "", []string{`--corrupt "": is empty`}},
	{"sidecar --rank x", 2, "", []string{`--rank: "x": want a whole number`}},
	{"sidecar --cluster c --pool p --group g --etcd.endpoints http://127.0.0.1:1 --tls.ca a --tls.cert b --tls.key c --staging.nixl.python /nope", 2, "", []string{"staging.nixl: ", "/nope"}},
	{"sidecar --cluster c --pool p --group g --etcd.endpoints http://127.0.0.1:1 --tls.ca a --tls.cert b --tls.key c --staging.nixl.library /nope.so", 2, "", []string{"staging.nixl: ", "/nope.so"}},
	{"bench --row nope", 2, "", []string{`--row "nope"`, "shm, plan"}},
	{"bench dynamo", 2, "", []string{`unexpected word "dynamo"`, "baton bench --row dynamo"}},
	{"bench nothing", 2, "", []string{`unexpected word "nothing"`, "baton bench --help"}},
	{"bench --row lower/512", 2, "", []string{`--row "lower/512": is one result of the row lower, which is measured whole: want --row lower`}},
	{"bench sim --trace --schedules 4", 2, "", []string{"--trace and --schedules are both given"}},
	{"bench sim --trace --need 0", 2, "", []string{"--trace and --need are both given"}},
	{"bench sim --minutes -1", 2, "", []string{"--minutes -1: want 0"}},
	{"bench sim --minutes NaN", 2, "", []string{"--minutes NaN: want 0"}},
	{"bench sim --keep-going -1", 2, "", []string{"--keep-going -1: want 0 or more"}},
	{"bench sim --schedules 20 --seed 7", 0, "20 schedules in", nil},
	{"bench sim --seed 7 --trace", 0, "group p1 is LAUNCHED", nil},
	{"bench sim --seed 7 --trace", 0, "seed 7: every promise was kept", nil},
	{"load --blocks -5", 2, "", []string{"--blocks -5: want 32 to 1536"}},
	{"load --blocks 2000000000", 2, "", []string{"--blocks 2000000000: want"}},
	{"load --slots -1", 2, "", []string{"--slots -1: want 1 to 4096"}},
	{"load --requests 10000 --at-once 5000", 2, "", []string{"--at-once 5000: want 1 to 2000"}},
	{"bench --row [", 2, "", []string{`--row "["`}},
	{"plan --model a --boxes b", 2, "", []string{"--model and --boxes"}},
	{"plan --boxes b --from tp=1", 2, "", []string{"--boxes and --from"}},
	{"version -x", 2, "", []string{"unknown shorthand flag"}},
	{"version --log-level", 2, "", []string{"flag needs an argument"}},
}

func TestExecute(t *testing.T) {
	for _, c := range calls {
		t.Run(c.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := Execute(strings.Fields(c.args), &stdout, &stderr); code != c.code {
				t.Errorf("code %d, want %d", code, c.code)
			}
			if !strings.Contains(stdout.String(), c.stdout) {
				t.Errorf("stdout %q lacks %q", stdout.String(), c.stdout)
			}
			for _, s := range c.stderr {
				if !strings.Contains(stderr.String(), s) {
					t.Errorf("stderr %q lacks %q", stderr.String(), s)
				}
			}
			if n := strings.Count(stderr.String(), "baton: "); c.code != 0 && n != 1 {
				t.Errorf("error printed %d times: %q", n, stderr.String())
			}
		})
	}
}

// A write that fails ends the command, whatever the command makes of it.
func TestStdoutFails(t *testing.T) {
	for _, args := range []string{"version", "--help", "plan --list", "plan --model llama-3.1-8b -o json", "completion bash"} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		var errs bytes.Buffer
		if code := Execute(strings.Fields(args), w, &errs); code != exitFailed || errs.String() != "baton: write to stdout: broken pipe\n" {
			t.Errorf("%s: %d %q", args, code, errs.String())
		}
		w.Close()
	}
}

func TestReport(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		text string
	}{
		{nil, 0, ""},
		{errors.New("etcd: down"), 1, "baton: etcd: down\n"},
		{&HintError{Err: errors.New("etcd: down"), Hint: "start it"}, 1, "baton: etcd: down\nhint: start it\n"},
		{&UsageError{Why: "no"}, 2, "baton: no\n"},
		{config.ErrConfig, 2, "baton: config\n"},
	} {
		var out bytes.Buffer
		if code := report(&out, c.err); code != c.code || out.String() != c.text {
			t.Errorf("%v: %d %q", c.err, code, out.String())
		}
	}
}

// A signal ends the command's context, and the command ends as it sees fit.
func TestSignalEndsTheContext(t *testing.T) {
	root := newRoot()
	root.AddCommand(&cobra.Command{Use: "wait", RunE: func(cmd *cobra.Command, _ []string) error {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		<-cmd.Context().Done()
		return errors.New("ended by a signal")
	}})
	var out, errs bytes.Buffer
	if code := execute(root, []string{"wait"}, &out, &errs); code != exitInterrupted || errs.String() != "baton: interrupted\n" {
		t.Errorf("%d %q", code, errs.String())
	}
}
