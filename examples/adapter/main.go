// Command adapter runs the sample adapter as a child of a sidecar.
package main

import (
	"github.com/batonkv/baton/examples/adapter/webhook"
	"github.com/batonkv/baton/plugins/adapter/child"
)

func main() { child.Serve(&webhook.Adapter{}) }
