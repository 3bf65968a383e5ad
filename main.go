// Baton moves the state of a running request between GPUs, safely and in the right
// shape. This is its one binary; every command lives in package cmd.
package main

import (
	"os"

	"github.com/batonkv/baton/cmd"
)

func main() {
	os.Exit(cmd.Execute(os.Args[1:], os.Stdout, os.Stderr))
}
