package handoff

import (
	"time"

	"github.com/batonkv/baton/transfer/choice"
)

// Link is how one rank reads from a rank of another group, and what that is worth.
type Link struct {
	Reader, Peer Member
	Choice       choice.Choice
	Age          time.Duration   // of Choice
	Measured     choice.Measured // by a probe
	Ago          time.Duration   // since it was measured
	Expected     float64         // bytes a second; 0: nothing is known to compare with
	Against      string          // where Expected comes from
	Finding      choice.Finding
}

// Messages about links, beside those of the hand-off. The machines here do not look at them.
type (
	// ProbeAsk asks a rank that can be read by staging where it may be probed.
	ProbeAsk struct {
		N     uint64
		Bytes int64 // of a chunk of the reader
	}
	// ProbeAt answers it: the wire mover and its port, or why there is none.
	ProbeAt struct {
		N     uint64
		Wire  uint64
		Port  int32
		Bytes int64 // of a chunk that may be fetched
		Busy  bool  // hand-offs are in the way: ask again later
		Why   string
	}
	// LinkNews tells a rank's leader of a link that was chosen, or whose worth changed.
	LinkNews struct{ Link Link }
)

func (ProbeAsk) peerMessage() {}
func (ProbeAt) peerMessage()  {}
func (LinkNews) peerMessage() {}
