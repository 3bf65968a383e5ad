package plugins

// A host sets this variable for the program that it starts as its plugin. It is no
// secret: it tells a plugin from a program that was started by hand.
const (
	CookieKey   = "BATON_PLUGIN"
	CookieValue = "5a1f0c2e7b9d4386a0e1d2c3b4f59687"
)

// Names under which go-plugin dispenses the interfaces. Each is one gRPC service of
// proto/plugin/v1.
const (
	HandoffPlugin = "handoff"
	ReshardPlugin = "reshard"
	ClusterPlugin = "cluster"
)
