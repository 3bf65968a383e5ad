package worker

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
)

// folder is a model's, of files by name.
func folder(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func withFiles(more ...string) map[string]string {
	files := map[string]string{configFile: `{"max_position_embeddings": 4096}`, tokenizerFile: `{"model": {}}`}
	for i := 0; i < len(more); i += 2 {
		files[more[i]] = more[i+1]
	}
	return files
}

func TestReadAssets(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		chats bool
	}{
		"no more than needed": {withFiles(), false},
		"no template":         {withFiles(formatFile, `{"chat_template": null}`), false},
		"an empty template":   {withFiles(formatFile, `{"chat_template": ""}`), false},
		"a template within":   {withFiles(formatFile, `{"chat_template": "{{ messages }}"}`), true},
		"a template beside":   {withFiles(formatFile, `{}`, templateFile, "{{ messages }}"), true},
		"a template alone":    {withFiles(templateFile, "{{ messages }}"), false},
	} {
		if a, err := ReadAssets(folder(t, c.files)); err != nil || a.chats != c.chats || a.context != 4096 {
			t.Errorf("%s: %+v %v", name, a, err)
		}
	}
	big := folder(t, withFiles())
	if err := os.Truncate(filepath.Join(big, tokenizerFile), maxAsset+1); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"nothing": filepath.Join(big, "none"), "no tokenizer": folder(t, map[string]string{configFile: "{}"}), "too large": big,
		"no JSON": folder(t, withFiles(configFile, "{")), "no JSON format": folder(t, withFiles(formatFile, "["))} {
		if _, err := ReadAssets(dir); !errors.Is(err, ErrModel) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// wantCard is the card that a rig's worker put.
func (r *rig) wantCard() (c card) {
	r.t.Helper()
	s, err := first(r.ctx(), r.files, directory.Models+"dynamo/c/generate/")
	if err != nil || len(s) != 1 {
		r.t.Fatal(s, err)
	}
	var m directory.Model
	if err := errors.Join(json.Unmarshal(s[0].Value, &m), json.Unmarshal(m.Card, &c)); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// TestCard: a frontend finds the files that the card names, whose sums are the card's.
func TestCard(t *testing.T) {
	files := withFiles(formatFile, `{"chat_template": "x"}`, templateFile, "y", genFile, "{}")
	dir := folder(t, files)
	a, err := ReadAssets(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, system := range []string{"", "127.0.0.1:0"} {
		r := newRig(t, discovery.Decode, true, func(c *Config) { c.Assets, c.System, c.Group = a, system, "d" })
		c := r.wantCard()
		if c.Type != "Chat | Completions" || c.Worker != "decode" || c.Context != 4096 || c.Source != dir || !reflect.DeepEqual(c.Runtime.Data, map[string]string{"baton": "v1", "baton_group": "d"}) {
			t.Errorf("%+v", c)
		}
		for name, f := range map[string]file{configFile: c.Info.File, tokenizerFile: c.Tokenizer.File, formatFile: c.Formatter.File, templateFile: c.Template.Of.File, genFile: c.Gen.File} {
			sum := blake3.Sum256([]byte(files[name]))
			if got := fetch(t, f.Path); got != files[name] || f.Checksum != "blake3:"+hex.EncodeToString(sum[:]) || f.Size != len(got) {
				t.Errorf("%s: %q of %+v", name, got, f)
			}
		}
	}
	told := newRig(t, discovery.Decode, true, func(c *Config) { c.Group, c.Dynamo.KV.Events = "d", "zmq" })
	if c := told.wantCard(); c.Runtime.State == nil || c.Runtime.State.String() != "dynamo.baton.state" || !c.Runtime.Publishes || !c.Runtime.Indexes {
		t.Errorf("%+v", c.Runtime)
	}
	p := newRig(t, discovery.Prefill, true)
	if c := p.wantCard(); c.Runtime.State != nil || c.Runtime.Publishes {
		t.Errorf("%+v", c.Runtime)
	} else if c.Type != "Prefill" || c.Worker != "prefill" || c.Tokenizer != nil || !reflect.DeepEqual(c.Needs, [][]string{{"decode"}}) {
		t.Errorf("%+v", c)
	}
}

// fetch reads what a card names.
func fetch(t *testing.T, path string) string {
	t.Helper()
	if !strings.HasPrefix(path, "http://") {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	status, body := get(t, path)
	if status != http.StatusOK {
		t.Fatalf("%s: %d", path, status)
	}
	return body
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}
