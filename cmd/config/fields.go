package config

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// field is one key of the configuration: its dotted name, its help, where its value
// lies. It is a pflag.Value too.
type field struct {
	name, help string
	value      reflect.Value
	given      bool // a flag was given, so a list begins anew with it
}

// maxText bounds one value.
const maxText = 4096

var durationType = reflect.TypeFor[time.Duration]()

// fields are the keys of c in the order of the struct, and the names of its sections.
func fields(c Keys) (keys []*field, sections []string) {
	collect(reflect.ValueOf(c).Elem(), "", &keys, &sections)
	return keys, sections
}

func collect(v reflect.Value, prefix string, keys *[]*field, sections *[]string) {
	for i := range v.NumField() {
		t := v.Type().Field(i)
		tag := t.Tag.Get("yaml")
		if tag == "" || tag == "-" {
			continue
		}
		name := prefix + tag
		if v.Field(i).Kind() == reflect.Struct {
			*sections = append(*sections, name)
			collect(v.Field(i), name+".", keys, sections)
			continue
		}
		*keys = append(*keys, &field{name: name, help: t.Tag.Get("help"), value: v.Field(i)})
	}
}

// set parses text by the field's type.
func (f *field) set(text string) error {
	if len(text) > maxText {
		return fmt.Errorf("%d bytes: want at most %d", len(text), maxText)
	}
	switch {
	case f.value.Type() == durationType:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q: want a duration such as 30s", text)
		}
		f.value.SetInt(int64(d))
	case f.value.Kind() == reflect.Int32:
		n, err := strconv.ParseInt(text, 10, 32)
		if errors.Is(err, strconv.ErrRange) {
			return fmt.Errorf("%q: want %s", clip(text), f.bounds())
		}
		if err != nil {
			return fmt.Errorf("%q: want a whole number", clip(text))
		}
		f.value.SetInt(n)
	case f.value.Kind() == reflect.String:
		f.value.SetString(text)
	default:
		return fmt.Errorf("%q: a value of kind %s cannot be set", text, f.value.Kind())
	}
	return nil
}

// bounds are those that Check holds a number to.
func (f *field) bounds() string {
	if f.name == "rank" {
		return fmt.Sprintf("0 to %d", maxRank)
	}
	return fmt.Sprintf("1 to %d", maxLimit)
}

func (f *field) list() bool { return f.value.Kind() == reflect.Slice }

// setList replaces the list.
func (f *field) setList(texts []string) { f.value.Set(reflect.ValueOf(texts)) }

// Set implements pflag.Value; a list takes words with commas, and more with each flag.
func (f *field) Set(text string) error {
	if !f.list() {
		return f.set(text)
	}
	var words []string
	if text != "" {
		words = strings.Split(text, ",")
	}
	if old, ok := f.value.Interface().([]string); ok && f.given {
		words = append(old[:len(old):len(old)], words...)
	}
	f.given = true
	f.setList(words)
	return nil
}

// String implements pflag.Value.
func (f *field) String() string {
	if !f.value.IsValid() {
		return ""
	}
	if words, ok := f.value.Interface().([]string); ok {
		return strings.Join(words, ",")
	}
	return fmt.Sprint(f.value.Interface())
}

// Type implements pflag.Value.
func (f *field) Type() string {
	switch {
	case f.value.Type() == durationType:
		return "duration"
	case f.list():
		return "strings"
	}
	return f.value.Kind().String()
}

// Bind makes a flag of every key of c, with c's values as defaults. Values that the
// flags get go to c.
func Bind(flags *pflag.FlagSet, c Keys) {
	keys, _ := fields(c)
	for _, k := range keys {
		flags.Var(k, k.name, k.help)
	}
}
