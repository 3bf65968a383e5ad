package dynamo

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
)

// schema is the part of JSON Schema that describes the endpoints.
type schema struct {
	Title      string             `json:"title,omitempty"`
	Type       string             `json:"type,omitempty"`
	Properties map[string]*schema `json:"properties,omitempty"`
	Required   []string           `json:"required,omitempty"`
	Items      *schema            `json:"items,omitempty"`
	MinItems   int                `json:"minItems,omitempty"`
	MaxItems   int                `json:"maxItems,omitempty"`
	Others     *schema            `json:"additionalProperties,omitempty"`
}

var paramsType = reflect.TypeFor[Params]()

func schemaOf(t reflect.Type) *schema {
	switch {
	case t == paramsType:
		return &schema{Type: "object", Properties: map[string]*schema{Carrier: schemaOf(reflect.TypeFor[Manifest]())}}
	case t.Kind() == reflect.Pointer:
		return schemaOf(t.Elem())
	case t.Kind() == reflect.Slice:
		return &schema{Type: "array", Items: schemaOf(t.Elem())}
	case t.Kind() == reflect.Array:
		return &schema{Type: "array", Items: schemaOf(t.Elem()), MinItems: t.Len(), MaxItems: t.Len()}
	case t.Kind() == reflect.Map:
		return &schema{Type: "object", Others: schemaOf(t.Elem())}
	case t.Kind() == reflect.String:
		return &schema{Type: "string"}
	case t.Kind() == reflect.Bool:
		return &schema{Type: "boolean"}
	case t.Kind() != reflect.Struct:
		return &schema{Type: "integer"}
	}
	s := &schema{Type: "object", Properties: map[string]*schema{}}
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		s.Properties[name] = schemaOf(t.Field(i).Type)
		if options == "" {
			s.Required = append(s.Required, name)
		}
	}
	return s
}

func titled(v any) *schema {
	s := schemaOf(reflect.TypeOf(v))
	s.Title = reflect.TypeOf(v).Name()
	return s
}

// TestSchemas holds the documented schemas against what the endpoints take and answer. With
// BATON_WRITE it writes them.
func TestSchemas(t *testing.T) {
	type document struct {
		Draft   string    `json:"$schema"`
		Request *schema   `json:"request,omitempty"`
		Item    []*schema `json:"items"`
	}
	for name, d := range map[string]document{
		"handoff": {Request: titled(HandoffRequest{}), Item: []*schema{titled(ImportAnswer{}), titled(InfoAnswer{}), titled(ListAnswer{}), titled(AwaitAnswer{}), titled(Notice{}), titled(Done{})}},
		"reshard": {Request: titled(ReshardRequest{}), Item: []*schema{titled(PlanAnswer{}), titled(ExplainAnswer{})}},
		"events":  {Item: []*schema{titled(Lifecycle{})}},
		"status":  {Request: &schema{Type: "object"}, Item: []*schema{titled(StatusAnswer{})}},
	} {
		path := "../../../docs/dynamo/" + name + ".schema.json"
		d.Draft = "https://json-schema.org/draft/2020-12/schema"
		want, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, '\n')
		if os.Getenv("BATON_WRITE") != "" {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
			t.Errorf("%s is not what endpoint %s has (%v): BATON_WRITE=1 go test -run TestSchemas writes it", path, name, err)
		}
	}
}
