package dynamo

import (
	"testing"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/sidecar/control"
)

// TestExportsAfterAGap: an export that a whole state does not show is over, unless that state
// says that it does not show all.
func TestExportsAfterAGap(t *testing.T) {
	for _, more := range []bool{false, true} {
		n := newNews()
		n.tell(adapter.Update{Notices: []control.Notice{{Kind: control.Exported, ID: id, Label: "r1", Manifest: &manifest}}})
		n.tell(adapter.Update{Whole: &adapter.State{More: more}, Lost: 1})
		if _, ok, _ := n.export("r1"); ok != more {
			t.Errorf("more %v: is there %v", more, ok)
		}
	}
}
