//go:build !race

package joint

const racing = false
