package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/sidecar/certs"

	"github.com/batonkv/baton/cmd/dev"
)

// ends runs a command to its end, which must be a failure that says every one of words
// and no panic, and gives its exit code.
func ends(t *testing.T, args, words []string) (code int) {
	t.Helper()
	cmd := exec.CommandContext(bounded(t), binary, args...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() < 1 {
		t.Errorf("%v ended with %v:\n%s", args, err, out)
		return 0
	}
	for _, w := range append(words, "baton: ") {
		if !strings.Contains(string(out), w) {
			t.Errorf("%v does not say %q:\n%s", args, w, out)
		}
	}
	if strings.Contains(string(out), "panic") || strings.Contains(string(out), "goroutine ") {
		t.Errorf("%v broke down:\n%s", args, out)
	}
	return exit.ExitCode()
}

func TestBadCommandLines(t *testing.T) {
	for _, c := range []struct {
		args string
		say  []string
	}{
		{"demi", []string{`did you mean "demo"?`}},
		{"dev --modle=hybrid", []string{`--modle`, `did you mean "--model"?`}},
		{"dev --model=hybird", []string{`model "hybird"`, "hybrid, attention, gqa, mla, swa, mtp, moe or hybrid-moe"}},
		{"dev --block=0", []string{"block", "0"}},
		{"dev --inference-shards=tp=2,rol=prefill", []string{`"rol=prefill"`, `did you mean "role"?`}},
		{"dev --inference-shards=tp=2,kv=fp12,role=prefill", []string{`kv="fp12"`, "bf16, fp16 or fp32"}},
		{"dev --inference-shards=tp=2,ssm=fp16,role=prefill", []string{`ssm="fp16"`, "fp32 or bf16"}},
		{"dev --inference-shards=tp=2,state=fp32,conv=bf16,role=prefill", []string{"conv and state", "group 1"}},
		{"load --inference-shards=tp=1,kv=fp16,role=prefill+tp=1,role=decode", []string{"kv, state", "no model"}},
		{"demo --inference-shards=tp=1,role=prefill+tp=1,kv=fp16,role=prefill+tp=1,role=decode", []string{"prefill-0 and prefill-1", "types"}},
		{"dev --inference-shards=tp=2,role=prefil", []string{`role="prefil"`, "prefill or decode"}},
		{"dev --inference-shards=tp=0,role=prefill", []string{`tp="0"`, "1 to"}},
		{"dev --inference-shards=ep=2,role=prefill", []string{"ep 2", "has no experts"}},
		{"dev --model=moe --inference-shards=ep=3,role=prefill", []string{"ep 3", "8 experts"}},
		{"dev --inference-shards=pp=9,role=prefill", []string{"pp 9", "4 layers"}},
		{"dev --inference-shards=pp=2,layers=3:2,role=prefill", []string{"layers [3 2]", "4 in all"}},
		{"dev --inference-shards=pp=3,layers=3:1,role=prefill", []string{"layers=[3 1]", "pp=3"}},
		{"dev --inference-shards=pp=2,layers=3;1,role=prefill", []string{`layers="3;1"`, "such as 3:1"}},
		{"dev --inference-shards=tp=8,pp=8,ep=2,role=prefill", []string{"128 ranks", "at most 64"}},
		{"load --inference-shards=pp=2,role=prefill+tp=1,role=decode", []string{"pp, ep", "tp alone"}},
		{"dev --inference-shards=tp=3,role=prefill+tp=1,role=decode", []string{"tp 3 does not divide", "choose a divisor"}},
		{"dev --disagg-kv-transport-backend=smh", []string{"disagg-kv-transport-backend", `"smh"`, "shm"}},
		{"demo --inference-shards=tp=1,role=prefill", []string{"a prefill and a decode group"}},
		{"demo --corrupt=kw", []string{`corrupt "kw"`, "want kv, state"}},
		{"demo --new=0", []string{"new", "0"}},
		{"demo --answers=0", []string{"--answers 0", "1 to 64"}},
		{"demo --answers=2 --via=plugin", []string{"--answers 2", "imports each prompt once"}},
		{"demo --deadline=1ms", []string{"--deadline 1ms", "100ms"}},
		{"dev --block=65536", []string{"--block 65536", "1 to 1024"}},
		{"sidecar --clustre=x", []string{"--clustre", `did you mean "--cluster"?`}},
		{"sidecar", []string{"cluster: is empty", "group: is empty", "endpoints: 0 given", "tls.ca"}},
		{"mover", []string{"no sidecar started this process", "baton sidecar"}},
		{"engine --group=g --instance=xyz", []string{`instance "xyz"`, "hexadecimal"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			if code := ends(t, strings.Fields(c.args), c.say); code != 2 {
				t.Errorf("exit code %d, want 2", code)
			}
		})
	}
}

// sidecarFile writes the configuration of a sidecar of its own group in a cluster, with
// a certificate for it, and lets change edit the lines.
func (w *world) sidecarFile(group string, change ...string) (file, dir string) {
	w.t.Helper()
	dir = filepath.Join(w.Dir, group)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	ca, err := certs.ReadCA(filepath.Join(w.Dir, "certs"))
	if err != nil {
		w.t.Fatal(err)
	}
	cert, key := w.leaf(ca, certs.SidecarID("dev", "default", group, 0), group)
	file = filepath.Join(dir, "sidecar.yaml")
	text := fmt.Sprintf("cluster: dev\npool: dev\ngroup: %s\nrank: 0\nrole: decode\ntenant: default\nrun-dir: %s\nlisten: 127.0.0.1:0\n"+
		"metrics: 127.0.0.1:0\nlog-level: warn\netcd:\n  endpoints: [%q]\ntls:\n  ca: %s\n  cert: %s\n  key: %s\n",
		group, dir, w.Etcd, filepath.Join(w.Dir, "certs", "ca.pem"), cert, key)
	text = strings.NewReplacer(change...).Replace(text)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return file, dir
}

func (w *world) leaf(ca *certs.CA, id certs.Identity, name string) (cert, key string) {
	w.t.Helper()
	pair, err := ca.Leaf(certs.LeafConfig{Identity: id, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, At: time.Now()})
	if err != nil {
		w.t.Fatal(err)
	}
	dir := w.t.TempDir()
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
	if err := pair.Write(cert, key); err != nil {
		w.t.Fatal(err)
	}
	return cert, key
}

// sidecar starts one more sidecar, until the end of the test.
func (w *world) sidecar(file string) (*lifeline.Child, dev.SidecarReady) {
	w.t.Helper()
	return w.sidecarOf(binary, file)
}

// sidecarOf starts one of another build.
func (w *world) sidecarOf(build, file string) (*lifeline.Child, dev.SidecarReady) {
	w.t.Helper()
	cmd := exec.Command(build, "sidecar", "--config", file)
	cmd.Stderr = w.log
	c, err := lifeline.Start(cmd)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Stop(context.Background()) })
	var r dev.SidecarReady
	if err := c.AwaitReady(bounded(w.t), &r); err != nil {
		w.t.Fatal(err)
	}
	return c, r
}

func TestBadSidecars(t *testing.T) {
	w := up(t, "tp=1,role=prefill+tp=1,role=decode", "hybrid")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	busy := l.Addr().String()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := free.Addr().String()
	free.Close()
	stranger, err := certs.NewCA("stranger", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(w.Dir, "certs", w.prefill.Name+"-0")
	foreignCert, foreignKey := w.leaf(stranger, certs.SidecarID("dev", "default", "bad", 0), "foreign")
	for _, c := range []struct {
		what   string
		change []string
		say    []string
	}{
		{"unknown key", []string{"pool: dev", "pol: dev"}, []string{"pol", `did you mean "pool"?`}},
		{"unknown key of a section", []string{"endpoints:", "endpoint:"}, []string{"endpoint", `did you mean "etcd.endpoints"?`}},
		{"listen in use", []string{"listen: 127.0.0.1:0", "listen: " + busy}, []string{"listen", busy, "in use"}},
		{"metrics in use", []string{"metrics: 127.0.0.1:0", "metrics: " + busy}, []string{"metrics", busy, "in use"}},
		{"bad role", []string{"role: decode", "role: decod"}, []string{"role", `did you mean "decode"?`}},
		{"long run-dir", []string{"run-dir: ", "run-dir: /tmp/" + strings.Repeat("x", 100)}, []string{"run-dir", "at most"}},
		{"run-dir of a living sidecar", []string{"run-dir: " + filepath.Join(w.Dir, "bad"), "run-dir: " + w.decode.Ranks[0].Sidecar.Engine},
			[]string{"held by process", "another run directory"}},
		{"etcd absent", []string{w.Etcd, "http://" + nobody, "  endpoints:", "  dial-timeout: 300ms\n  endpoints:"}, []string{"etcd", nobody, "etcd.endpoints"}},
		{"no certificate", []string{"cert: ", "cert: /nowhere"}, []string{"/nowhere"}},
		{"certificate of another CA", []string{"cert: ", "cert: " + foreignCert + " #", "key: ", "key: " + foreignKey + " #"}, []string{"tls", "CA"}},
		{"certificate of another sidecar", []string{"cert: ", "cert: " + other + ".pem #", "key: ", "key: " + other + "-key.pem #"},
			[]string{"tls.cert", "default/" + w.prefill.Name + "/0", "default/bad/0", "baton certs"}},
		{"key of another certificate", []string{"key: ", "key: " + foreignKey + " #"}, []string{"key"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			file, _ := w.sidecarFile("bad", c.change...)
			ends(t, []string{"sidecar", "--config", file}, c.say)
		})
	}
	w.handoff("unharmed", prompt(1, 40))
}

// TestOldSockets: what a dead sidecar left is replaced, what is not its own is not.
func TestOldSockets(t *testing.T) {
	w := up(t, "tp=1,role=decode", "attention")
	t.Run("a file where a socket goes", func(t *testing.T) {
		file, dir := w.sidecarFile("file")
		path := filepath.Join(dir, "engine.sock")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		ends(t, []string{"sidecar", "--config", file}, []string{path, "no socket", "remove it"})
	})
	t.Run("stale sockets", func(t *testing.T) {
		file, dir := w.sidecarFile("stale")
		c, _ := w.sidecar(file)
		c.Kill()
		<-c.Exited()
		if _, err := os.Lstat(filepath.Join(dir, "engine.sock")); err != nil {
			t.Fatalf("the killed sidecar left no socket to test with: %v", err)
		}
		c, _ = w.sidecar(file)
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		left, _ := filepath.Glob(filepath.Join(dir, "*.sock"))
		if len(left) > 0 {
			t.Errorf("a sidecar that was told to stop left %v", left)
		}
	})
}
