package joint

// act is what happens to one node.
type act struct {
	kind actKind
	a, b int
	c    uint64
}

type actKind uint8

const (
	arrives    actKind = iota // letter a
	says                      // the engine's next word is heard
	settles                   // ticket a, badly when b is 1; c: the bytes
	ticks                     //
	applies                   // engines apply through c, and give back what is in the set a of hand-offs
	freed                     // rank 0's engine tells that a blocks are free
	reached                   // dial a ended: a session
	unreached                 // dial a ended: none
	linkOpens                 // link a, not when b is 1
	losesLinks                //
	looks                     // at discovery, where the sidecars of c are dead
	imports                   // manifest a
	isAborted                 // import of manifest a
	isReleased                // manifest a
	newWeights                // a trainer gives
	moverDies                 //
	engineDies                //
	dies                      // the sidecar; when b is 1 before its engine reads what it said last
	exports                   // hand-off a
	restarts                  // the sidecar, where discovery shows c
	joins                     // the engine attaches
	parts_                    // the engine's session ends
	announces                 // rank 0's engine: hand-off a
	givesUp                   // rank 0's engine: hand-off a
	forgets                   // the engine, what has ended
	finishes                  // what the engine admitted
	forged                    // letter a comes in the way b
	packs                     // pack a ends, badly when b is 1
	fetches                   // fetch a ends: b is the code of what it brought, and c its bytes; badly when b is 0
	unpacks                   // unpack a ends, badly when b is 1
	wireDies                  // the wire mover for node a
	wireExits                 // and is seen to; another follows
	ages                      // another process has its place; while b is 1 it hangs
	renews                    // its engine is launched anew
	launches                  // that engine, and attaches
	inherits                  // the engine of node a of the table
	loses                     // its engine, to the process in its place
	grows                     // its engine exports what it computed next of hand-off 0
	preempts_                 // its engine, hand-off 0
)

// out is what a node's step does outside it.
type out struct {
	kind outKind
	to   int // node, ticket, blocks, manifest
	msg  uint32
	at   remark
	text string
}

type outKind uint8

const (
	sends      outKind = iota // letter msg to node to
	parts                     // from node to
	endsEngine                // the group's engines end
	remarks                   //
	replies                   // to an import; failed when to is 1
	shows                     // manifest msg of hand-off to
	admits                    // import of at.proof.claim
	frees                     // to blocks
	breaks_                   // an invariant: text
)
