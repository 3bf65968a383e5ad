package mem

import (
	"testing"

	"github.com/batonkv/baton/transfer/transfertest"
)

func TestSuite(t *testing.T) {
	transfertest.Run(t, func(t *testing.T) transfertest.Env {
		return transfertest.Env{Backend: new(Backend), Alloc: transfertest.Local}
	})
}
