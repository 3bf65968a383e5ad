//go:build !asan

package cudatest

var sanitize []string
