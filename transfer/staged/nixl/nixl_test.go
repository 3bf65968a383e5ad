package nixl

import (
	"testing"

	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/nixl/fake"
	"github.com/batonkv/baton/transfer/staged/wiretest"
)

// TestWire runs the suite of wires over each way that bytes may take on this host.
func TestWire(t *testing.T) {
	for name, c := range map[string]struct {
		open func(testing.TB) Options
		env  string
	}{
		"default": {real, ""},
		"tcp":     {real, "UCX_TLS=tcp,self"}, // UCX emulates reads: the target takes part in them
		"fake":    {func(t testing.TB) Options { return pretend(t) }, ""},
		"later":   {func(t testing.TB) Options { return pretend(t) }, fake.Env + "=later"},
	} {
		t.Run(name, func(t *testing.T) {
			o := c.open(t)
			last := staged.Incarnation(0)
			wiretest.Run(t, func(t testing.TB, chunks int32, chunk int64) wiretest.End {
				last++
				cfg, b := config(t, last, chunks, chunk, o, c.env)
				return wiretest.End{Wire: start(t, cfg), ID: last, Arena: b}
			})
		})
	}
}
