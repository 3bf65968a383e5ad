//go:build !race

package staged

const racing = false
