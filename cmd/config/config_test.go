package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/machine"

	"github.com/spf13/pflag"
	"pgregory.net/rapid"
)

const whole = `
cluster: prod
pool: llama-70b
group: prefill-0
rank: 3
role: prefill
tenant: team-a
run-dir: /run/x
listen: 10.0.0.1:7400
metrics: ""
etcd:
  endpoints: [http://a:2379, "http://b:2379"]
  dial-timeout: 2s
  ttl: 15s
nats:
  urls:
    - nats://n:4222
  queue: 10
tls: {ca: ca.pem, cert: c.pem, key: k.pem}
lease: 45s
limits:
  peers: 7
log-format: json
`

func TestDecode(t *testing.T) {
	c := Default()
	if err := Decode([]byte(whole), &c); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Cluster, want.Pool, want.Group, want.Rank, want.Role, want.Tenant = "prod", "llama-70b", "prefill-0", 3, "prefill", "team-a"
	want.RunDir, want.Listen = "/run/x", "10.0.0.1:7400"
	want.Etcd.Endpoints = []string{"http://a:2379", "http://b:2379"}
	want.Etcd.DialTimeout, want.Etcd.TTL = 2*time.Second, 15*time.Second
	want.NATS.URLs, want.NATS.Queue = []string{"nats://n:4222"}, 10
	want.TLS.CA, want.TLS.Cert, want.TLS.Key = "ca.pem", "c.pem", "k.pem"
	want.Lease, want.Limits.Peers, want.LogFormat = 45*time.Second, 7, "json"
	if !reflect.DeepEqual(c, want) {
		t.Errorf("\n got %+v\nwant %+v", c, want)
	}
}

func TestDecodeFaults(t *testing.T) {
	for _, c := range []struct{ file, want string }{
		{"cluster: a\nclutser: b", `line 2: unknown key "clutser": did you mean "cluster"?`},
		{"etcd:\n  endpionts: [a]", `line 2: unknown key "etcd.endpionts": did you mean "etcd.endpoints"?`},
		{"endpoints: [a]", `unknown key "endpoints": did you mean "etcd.endpoints"?`},
		{"ectd: {}", `unknown key "ectd": did you mean "etcd"?`},
		{"something-else: 1", `unknown key "something-else"`},
		{"a: 1\nrank: three", `line 2: rank: "three": want a whole number`},
		{"rank: 1.5", "rank: "},
		{"rank: 99999999999", `rank: "99999999999": want 0 to 1023`},
		{"limits: {queue: 99999999999}", "want 1 to 1048576"},
		{"lease: 30", `lease: "30": want a duration such as 30s`},
		{"lease: [30s]", "lease: want one duration"},
		{"cluster: {a: b}", "cluster: want one string"},
		{"cluster:", "cluster: want one string"},
		{"etcd: 5", "etcd: want keys and values under it"},
		{"etcd: {endpoints: http://a:1}", "etcd.endpoints: want a list"},
		{"etcd: {endpoints: [[a]]}", "etcd.endpoints: want a list of words"},
		{"cluster: a\ncluster: b", "given twice, first in line 1"},
		{"etcd: {ttl: 1s}\netcd: {ttl: 2s}", "given twice, first in line 1"},
		{"- a", "want keys and values"},
		{"\tx", "not YAML"},
		{"adapters: x", "line 1: adapters: want a list of at most 16"},
		{"adapters: [x]", "adapters: want keys and values, of name, command, built-in, config"},
		{"adapters: [{nmae: x}]", `adapters: unknown key "nmae": want one of name, command, built-in, config; did you mean "name"?`},
		{"adapters: [{name: x, name: y}]", "adapters: name: given twice"},
		{"adapters: [{name: [x]}]", "adapters.name: want one word"},
		{"adapters: [{command: x}]", "adapters.command: want a list of at most 64 words"},
		{"adapters: [{command: [[x]]}]", "adapters.command: want one word"},
		{"adapters: [{config: {a: &x 1, b: *x}}]", "adapters.config: has an alias"},
		{"adapter: []", `unknown key "adapter": did you mean "adapters"?`},
		{"a: &x [1]\ncluster: *x", "cluster: want one string"},
		{"cluster: " + strings.Repeat("x", maxText+1), "cluster: 4097 bytes"},
	} {
		s := Default()
		err := Decode([]byte(c.file), &s)
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %v; want %s", c.file, err, c.want)
		}
	}
	s := Default()
	if err := Decode([]byte("bad-one: 1\nbad-two: 2\n"), &s); err == nil || !strings.Contains(err.Error(), "bad-one") || !strings.Contains(err.Error(), "bad-two") {
		t.Errorf("not every fault: %v", err)
	}
	for _, empty := range []string{"", "---\n", "# only a comment", "etcd:\n"} {
		if err := Decode([]byte(empty), &s); err != nil {
			t.Errorf("%q: %v", empty, err)
		}
	}
}

// load is the configuration of a command line and a file.
func load(t *testing.T, file string, args ...string) (Sidecar, error) {
	t.Helper()
	path := ""
	if file != "" {
		path = filepath.Join(t.TempDir(), "sidecar.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := Default()
	flags := pflag.NewFlagSet("sidecar", pflag.ContinueOnError)
	flags.SetOutput(&bytes.Buffer{})
	Bind(flags, &c)
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	return c, Load(path, flags, &c)
}

func TestFlagsOverrideTheFile(t *testing.T) {
	c, err := load(t, whole, "--rank=0", "--etcd.endpoints", "http://c:1,http://d:1", "--etcd.endpoints=http://e:1",
		"--lease", "1m", "--nats.urls=", "--log-level=debug", "--role=decode")
	if err != nil {
		t.Fatal(err)
	}
	if c.Rank != 0 || c.Lease != time.Minute || c.LogLevel != "debug" || c.Role != "decode" || len(c.NATS.URLs) != 0 ||
		!slices.Equal(c.Etcd.Endpoints, []string{"http://c:1", "http://d:1", "http://e:1"}) {
		t.Errorf("%+v", c)
	}
	if c.Group != "prefill-0" || c.Limits.Peers != 7 {
		t.Errorf("the file's own are gone: %+v", c)
	}
}

// least is what has no default.
var least = []string{"--cluster=c", "--pool=p", "--group=g", "--etcd.endpoints=http://a:1", "--tls.ca=a", "--tls.cert=b", "--tls.key=c"}

func TestFlagsAlone(t *testing.T) {
	c, err := load(t, "", least...)
	if err != nil || c.Cluster != "c" || c.Tenant != "default" {
		t.Errorf("%v %+v", err, c)
	}
	if _, err := load(t, "", "--rank=x"); err == nil || !strings.Contains(err.Error(), "want a whole number") {
		t.Error(err)
	}
	if _, err := load(t, "", "--lease=5"); err == nil || !strings.Contains(err.Error(), "such as 30s") {
		t.Error(err)
	}
}

func TestCheckTellsEveryFault(t *testing.T) {
	_, err := load(t, "", "--cluster=A", "--role=prefil", "--listen=x", "--advertise=:0", "--metrics=h:99999", "--run-dir=",
		"--etcd.ttl=1ms", "--nats.urls=http://x", "--lease=0s", "--max-hold=1s", "--limits.imports=0", "--log-level=loud", "--rank=-1",
		"--staging.transport=none", "--staging.when=always", "--staging.arena=0", "--staging.chunk=6", "--staging.depth=65", "--staging.rtt=-1s", "--staging.connections=65")
	if !errors.Is(err, ErrConfig) {
		t.Fatal(err)
	}
	for _, want := range []string{
		`cluster: "A"`, "pool: is empty: set --pool", "group: is empty", `did you mean "prefill"?`, `listen: "x": want host:port`,
		"advertise: ", "metrics: ", "run-dir: is empty", "config: etcd.endpoints: 0 given", "config: etcd.ttl: 1ms", "config: nats.urls[0]", "config: tls.ca: is empty", "config: tls.key: is empty",
		"lease: 0s", "limits.imports: 0", `log-level: "loud"`, "rank: -1",
		"staging.when: is always and staging.transport is none", "staging.arena: 0: want 1 to 4096",
		"staging.chunk: 6: want a multiple of 4", "staging.depth: 65: want 0 to 64", "staging.rtt: -1s", "staging.connections: 65: want 0 to 64",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("lacks %q:\n%v", want, err)
		}
	}
	for _, chunk := range []string{"--staging.chunk=-1", "--staging.chunk=9999999", "--staging.chunk=65540", "--staging.arena=-1", "--staging.arena=9999999"} {
		if _, err := load(t, "", append(least, chunk)...); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: want one fault, got %v", chunk, err)
		}
	}
	if _, err := load(t, "", append(least, "--staging.chunk=2048", "--staging.arena=1")...); err == nil || !strings.Contains(err.Error(), "2048 KiB are more than staging.arena, 1 MiB") {
		t.Error(err)
	}
	if _, err := load(t, "", "--lease=1h"); err == nil || !strings.Contains(err.Error(), "max-hold: 5m0s is shorter") {
		t.Error(err)
	}
}

// Every key has a flag, a help text and a name that a file can hold.
func TestKeys(t *testing.T) {
	c := Default()
	keys, sections := fields(&c)
	names := map[string]bool{}
	for _, k := range keys {
		if k.help == "" || names[k.name] || strings.Trim(k.name, "abcdefghijklmnopqrstuvwxyz-.") != "" {
			t.Errorf("%+v", k)
		}
		names[k.name] = true
	}
	for _, want := range []string{"cluster", "etcd.endpoints", "etcd.tls.ca", "nats.credentials", "tls.key", "limits.queue"} {
		if !names[want] {
			t.Errorf("no key %s", want)
		}
	}
	if !slices.Contains(sections, "etcd.tls") {
		t.Errorf("%v", sections)
	}
}

// The sidecar that nothing was said to is the machine's own.
func TestDefaultsAreTheMachines(t *testing.T) {
	c, m := Default(), machine.Config{}.Defaults()
	if c.Lease != m.Lease || c.MaxHold != m.MaxHold || c.Deadline != m.Deadline ||
		int(c.Limits.Imports) != m.MaxImports || int(c.Limits.Exports) != m.MaxSources {
		t.Errorf("%+v\n%+v", c, m)
	}
	if c.Lease != 30*time.Second || c.MaxHold != 5*time.Minute || c.Deadline != 30*time.Second || c.Limits.Exports != 4096 {
		t.Errorf("%+v", c)
	}
}

func TestCheckAddresses(t *testing.T) {
	whole := []string{"--cluster=c", "--pool=p", "--group=g", "--etcd.endpoints=http://a:1", "--tls.ca=a", "--tls.cert=b", "--tls.key=c"}
	for _, c := range []struct{ args, want string }{
		{"--listen=0.0.0.0:7400", "advertise: is empty"},
		{"--listen=[::]:7400", "advertise: is empty"},
		{"--listen=:7400", "advertise: is empty"},
		{"--listen=0.0.0.0:7400 --advertise=h:7400", ""},
		{"--advertise=0.0.0.0:7400", "advertise: \"0.0.0.0:7400\": nobody can dial"},
		{"--listen=10.0.0.1:0", ""},
		{"--run-dir=run/baton", `run-dir: "run/baton": want an absolute path`},
		{"--rank=1023", ""},
		{"--rank=1024", "rank: 1024: want 0 to 1023"},
	} {
		_, err := load(t, "", append(slices.Clone(whole), strings.Fields(c.args)...)...)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v; want %q", c.args, err, c.want)
		}
		if err != nil && strings.Count(err.Error(), "config") != 1 {
			t.Errorf("%s: stutters: %v", c.args, err)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"version", "sidecar", "mover", "plan", "demo", "dev"}
	for word, want := range map[string]string{
		"verison": "version", "sidecra": "sidecar", "movr": "mover", "paln": "plan", "dem": "demo", "xyzzy": "", "": "", "p": "",
		strings.Repeat("v", 1000): "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%q: %q; want %q", word, got, want)
		}
	}
}

func TestDistanceIsAMetric(t *testing.T) {
	word := rapid.StringMatching(`[abc]{0,8}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		d := distance(a, b)
		if d != distance(b, a) || (d == 0) != (a == b) || d > max(len(a), len(b)) || d < max(len(a), len(b))-min(len(a), len(b)) {
			t.Fatalf("distance(%q, %q) = %d", a, b, d)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("<<: {cluster: x}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := Default()
		if err := Decode(b, &c); err != nil && !errors.Is(err, ErrConfig) {
			t.Fatalf("not ErrConfig: %v", err)
		}
		_ = c.Check()
	})
}

func TestNewLogger(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, "warn", "json")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("no")
	log.Warn("yes")
	if s := out.String(); !strings.Contains(s, `"msg":"yes"`) || strings.Contains(s, "no") {
		t.Error(s)
	}
}

func TestControl(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "control.yaml")
	if err := os.WriteFile(file, []byte("cluster: c\netcd: {endpoints: [http://a:1]}\ntls: {ca: ca.pem, cert: c.pem, key: k.pem}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, args, want string }{
		{file, "", ""},
		{file, "--cluster=other", ""},
		{"", "--cluster=c --addr=h:1 --group=g --tls.ca=a --tls.cert=b --tls.key=c", ""},
		{"", "--cluster=c --tls.ca=a --tls.cert=b --tls.key=c", "etcd.endpoints: 0 given"},
		{"", "--addr=h:1 --tls.ca=a --tls.cert=b --tls.key=c", "cluster: is empty"},
		{"", "--cluster=c --addr=h:1 --tls.ca=a --tls.cert=b --tls.key=c", "group: is empty"},
		{"", "--cluster=c --addr=h --group=g --tls.ca=a --tls.cert=b --tls.key=c", "want host:port"},
		{"", "--cluster=c --group=g --addr=h:1 --etcd.endpoints=http://a:1 --tls.ca=a --tls.cert=b --tls.key=c", "addr: is given, and etcd.endpoints too"},
		{"", "--cluster=C --etcd.endpoints=http://a:1", `cluster: "C"`},
		{"", "--cluster=c --etcd.endpoints=http://a:1", "tls.ca"},
	} {
		got := DefaultControl()
		flags := pflag.NewFlagSet("control", pflag.ContinueOnError)
		Bind(flags, &got)
		if err := flags.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		err := Load(c.file, flags, &got)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, ErrConfig)) {
			t.Errorf("%s: %v; want %q", c.args, err, c.want)
		}
		if c.file != "" && got.TLS.CA != filepath.Join(dir, "ca.pem") {
			t.Errorf("the file's ca.pem is %s", got.TLS.CA)
		}
	}
}

// TestControlOfSidecar: a sidecar's file is called one, once, and a typo in it still has its line.
func TestControlOfSidecar(t *testing.T) {
	c := DefaultControl()
	err := Decode([]byte(whole+"adapters: [{name: a}]\nclutser: x\n"), &c)
	if err == nil || strings.Count(err.Error(), "a sidecar's file") != 1 || !strings.Contains(err.Error(), "which has pool, rank, role: want") ||
		strings.Count(err.Error(), "unknown key") != 1 || !strings.Contains(err.Error(), `unknown key "clutser": did you mean "cluster"?`) {
		t.Error(err)
	}
}

func TestAdapters(t *testing.T) {
	c, err := load(t, whole+`
adapters:
  - {name: a, built-in: webhook, config: {url: "http://x", n: [1, 2]}}
  - name: b
    command: [bin/mine, rel/arg]
  - name: c
    command: [mine]
    config:
      # kept
      deep: {er: ""}
`)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(c.TLS.CA)
	want := []Adapter{{Name: "a", BuiltIn: "webhook", Section: "url: \"http://x\"\nn: [1, 2]\n"}, {Name: "b", Command: []string{filepath.Join(dir, "bin/mine"), "rel/arg"}},
		{Name: "c", Command: []string{"mine"}, Section: "# kept\ndeep: {er: \"\"}\n"}}
	if !reflect.DeepEqual(c.Adapters, want) {
		t.Errorf("%+q\nwant %+q", c.Adapters, want)
	}
	beside := Adapter{Command: []string{"./mine"}}
	if beside.program("."); beside.Command[0] != "./mine" {
		t.Errorf("a program beside the file becomes %q, which PATH decides", beside.Command[0])
	}
	for _, bad := range []struct{ list, want string }{
		{"{name: A, command: [x]}", `adapters.name: "A": want 1 to 63`},
		{"{command: [x]}", `adapters.name: "": want 1 to 63`},
		{"{name: a, command: [x]}, {name: a, command: [y]}", `adapters.name: "a" is given twice`},
		{"{name: a}", "adapters.a: want a command"},
		{"{name: a, command: [x], built-in: y}", "adapters.a: has a command and built-in"},
		{`{name: a, command: [""]}`, "adapters.a.command: its program is empty"},
	} {
		if _, err := load(t, whole+"\nadapters: ["+bad.list+"]"); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v", bad.list, err)
		}
	}
}
