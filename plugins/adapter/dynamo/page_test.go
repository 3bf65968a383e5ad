package dynamo

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestPage: the section that docs/DYNAMO.md shows has every key, with its default.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/DYNAMO.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n```yaml\nnamespace: dynamo")
	text, _, ok := strings.Cut("namespace: dynamo"+rest, "\n```\n")
	if !ok {
		t.Fatal("the page shows no section")
	}
	shown, err := ParseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	least, err := ParseConfig([]byte("namespace: dynamo\netcd: {endpoints: ['http://10.0.0.9:2379']}"))
	if err != nil {
		t.Fatal(err)
	}
	shown.CallHome, shown.NATS.URLs = least.CallHome, least.NATS.URLs // empty and none are the same
	if !reflect.DeepEqual(shown, least) {
		t.Errorf("%+v\nwant the defaults %+v", shown, least)
	}
	var keys map[string]any
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, "\n# folder", "\nfolder")), &keys); err != nil {
		t.Fatal(err)
	}
	missing(t, "", keys, reflect.TypeFor[Config]())
}

// missing tells of keys of a struct that a section does not show.
func missing(t *testing.T, path string, keys map[string]any, of reflect.Type) {
	for f := range of.Fields() {
		key := f.Tag.Get("yaml")
		if key == "" || key == "-" {
			continue
		}
		value, ok := keys[key]
		if !ok {
			t.Errorf("%s%s is not shown", path, key)
		}
		if f.Type.Kind() == reflect.Struct {
			within, _ := value.(map[string]any)
			missing(t, path+key+".", within, f.Type)
		}
	}
}
