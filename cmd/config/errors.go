package config

import (
	"errors"
	"fmt"
	"strings"
)

// ErrConfig is every fault of a configuration; its text names the field and the remedy.
var ErrConfig = errors.New("config")

// want says what could stand in the place of got.
func want(got string, known []string) string {
	text := "want one of " + strings.Join(known, ", ")
	if near := Nearest(got, known); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return text
}
