//go:build asan

package cudatest

// sanitize has the fake checked as the test binary is.
var sanitize = []string{"-fsanitize=address"}
