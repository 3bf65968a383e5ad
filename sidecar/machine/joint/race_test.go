//go:build race

package joint

// racing: the detector is on, which has nothing to find in a walk of pure machines and
// makes it ten times as long.
const racing = true
