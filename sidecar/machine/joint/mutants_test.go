package joint

import (
	"testing"

	"github.com/batonkv/baton/internal/mutants"
)

func TestMutants(t *testing.T) { mutants.Run(t, "testdata/mutants.txt") }
