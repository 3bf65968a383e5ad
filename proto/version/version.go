// Package version says which versions of its outward protocols this build speaks: between
// a control plane and its plugin (proto/plugin/v1), and between a control plane and a
// sidecar (proto/control/v1). Both sides of a connection name theirs; the highest common
// one is spoken, and without one nothing is.
package version

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Of this build, with commas. Variables, so that a test's second build speaks a made-up
// next version: -ldflags "-X github.com/batonkv/baton/proto/version.plugin=2".
var (
	plugin  = "1"
	control = "1"
)

// maxVersions bounds a list that another process says.
const maxVersions = 32

// Plugin are the plugin protocol's versions, ascending.
func Plugin() []int { return mine(plugin) }

// Control are the control service's versions, ascending.
func Control() []int { return mine(control) }

func mine(text string) []int {
	vs, err := Parse(text)
	if err != nil {
		panic("version: of this build: " + err.Error()) // what the linker was told
	}
	return vs
}

// Parse reads what Format wrote, in any order, once each. "" is version 1: what did not
// say its versions is as old as that.
func Parse(text string) ([]int, error) {
	if text == "" {
		return []int{1}, nil
	}
	if len(text) > 8*maxVersions {
		return nil, fmt.Errorf("%d bytes of versions: at most %d", len(text), 8*maxVersions)
	}
	var vs []int
	for _, word := range strings.Split(text, ",") {
		v, err := strconv.ParseUint(word, 10, 16)
		if err != nil || v == 0 {
			return nil, fmt.Errorf("versions %q: want numbers from 1 with commas", text)
		}
		vs = append(vs, int(v))
	}
	slices.Sort(vs)
	return slices.Compact(vs), nil
}

// Format is the versions as they travel: "1,2".
func Format(vs []int) string {
	words := make([]string, len(vs))
	for i, v := range vs {
		words[i] = strconv.Itoa(v)
	}
	return strings.Join(words, ",")
}

// Common is the highest version of both, and whether there is one.
func Common(a, b []int) (int, bool) {
	best := 0
	for _, v := range a {
		if v > best && slices.Contains(b, v) {
			best = v
		}
	}
	return best, best > 0
}
