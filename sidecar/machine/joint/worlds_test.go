package joint

import "time"

// one is one hand-off of one block between groups of equal size.
func one(ranks int32, budget int8, faults faultKind) setup {
	return setup{src: ranks, dst: []int32{ranks}, labels: 1, tokens: blockTokens, blocks: 2, calls: [][]int{{0}}, faults: faults, budget: budget}
}

func (s setup) with(change func(*setup)) setup {
	change(&s)
	return s
}

const (
	local  = badCopies | movers | twice                      // faults that end no session
	words  = users | forgers | weights                       // what is said from outside
	mortal = every                                           // what dies stays dead: its launch is over
	alive  = every | comeBack | sessions | weights | forgers // what dies comes back
)

func cold(s *setup)    { s.cold = true }
func early(s *setup)   { s.early = true }
func byWire(s *setup)  { s.staged = true }
func hanging(s *setup) { s.hangs = true }
func owned(s *setup)   { s.staged, s.owned = true, true }
func renewed(s *setup) { s.hold, s.deadline = 35*time.Second, 50*time.Second }

// unlike: two ranks, neither of which exports what the other does.
func unlike(s *setup) { s.unlike, s.src, s.labels, s.calls = true, 2, 2, nil }

// twins: every rank may have two sidecars.
func twins(s *setup)  { s.twins = true }
func frozen(s *setup) { s.frozen = true }

// pair: two ranks, whose hand-off nobody asks for.
func pair(s *setup) { s.twins, s.cold, s.src, s.calls = true, true, 2, nil }

// askTwice: an import is asked for twice, by whoever knows of one leader or the other.
func askTwice(s *setup) { s.calls = [][]int{{0, 0}} }

// two importing groups are asked for one hand-off.
func rivals(ranks, copies int32) func(*setup) {
	return func(s *setup) {
		s.dst, s.calls, s.copies = []int32{ranks, ranks}, [][]int{{0}, {0}}, copies
	}
}

// twoHands: two hand-offs, and room for one.
func twoHands(s *setup) { s.labels, s.calls, s.room = 2, [][]int{{0, 1}}, 1 }

// crossed: two groups take the same two, in opposite order.
func crossed(s *setup) {
	s.dst, s.labels, s.calls, s.copies, s.room = []int32{1, 1}, 2, [][]int{{0, 1}, {1, 0}}, 2, 1
}

var worlds = []struct {
	name string
	long bool
	setup
}{
	{"1+1, a fault, deaths last", false, one(1, 1, mortal|views)},
	{"1+1, a fault", false, one(1, 1, alive|views)},
	{"1+1, two faults", false, one(1, 2, alive)},
	{"1+1 that have not met, a fault", false, one(1, 1, alive|views).with(cold)},
	{"1+1 announced, a fault", false, one(1, 1, alive|views).with(early)},
	{"1+1 renewed, a fault", false, one(1, 1, alive).with(renewed)},
	{"2 export unlike labels, a fault", false, one(1, 1, alive).with(unlike)},
	{"2 renew, two faults", false, one(1, 2, network|delays).with(renewed).with(func(s *setup) { s.src, s.calls = 2, nil })},
	{"1+1 asked again, a fault", false, one(1, 1, alive).with(func(s *setup) { s.retry = 1 })},
	{"1+1 two hand-offs, a user or mover", false, one(1, 1, users|movers).with(twoHands)},
	{"1+1+1 two hand-offs crossed", false, one(1, 0, 0).with(crossed)},
	{"1+1+1 one copy, a user or mover", false, one(1, 1, users|movers|twice).with(rivals(1, 1))},
	{"2+2, no fault", false, one(2, 0, 0)},
	{"2+2, a copy, mover or word", false, one(2, 1, local)},
	{"2+2, a session ends", false, one(2, 1, breaks)},
	{"2 read by 1, a copy, mover or word", false, one(1, 1, local).with(func(s *setup) { s.src = 2 })},
	{"2 read by 1, a process dies", false, one(1, 1, processes).with(func(s *setup) { s.src = 2 })},
	{"3+3, no fault", false, one(3, 0, 0)},
	{"1+1 in parts, a fault", false, one(1, 1, alive|preempts|views).with(inParts(blockTokens))},
	{"1+1 in parts that reach all, a fault", false, one(1, 1, alive|preempts).with(inParts(blockTokens, 2*blockTokens))},
	{"1+1 in parts asked again, two of users and words", false, one(1, 2, users|badCopies|twice|preempts).with(inParts(blockTokens)).with(func(s *setup) { s.retry = 1 })},
	{"1+1+1 in parts one copy, a user or mover", true, one(1, 1, users|movers|preempts).with(rivals(1, 1)).with(inParts(blockTokens))},
	{"2+2 in parts, preempted", false, one(2, 1, preempts).with(inParts(blockTokens))},
	{"1+1 staged in parts, a fault", false, one(1, 1, alive|preempts).with(inParts(blockTokens)).with(byWire)},
	{"1+1 staged, a fault", false, one(1, 1, alive).with(byWire)},
	{"1+1 staged by wire movers, a fault", false, one(1, 1, alive).with(owned)},
	{"1+1 staged, a mover and time", false, one(1, 2, movers|wires|delays|releases|twice).with(byWire)},
	{"1+1 staged, packs hang, a fault", false, one(1, 1, alive).with(byWire).with(hanging)},
	{"1+1 staged by wire movers, packs hang, a fault", false, one(1, 1, alive).with(owned).with(hanging)},
	{"1+1 staged by wire movers two hand-offs, a mover", false, one(1, 1, wires).with(owned).with(twoHands).with(func(s *setup) { s.room, s.apart = 0, true })},
	{"2 read by 1 staged, packs hang, a process dies", false, one(1, 1, processes|wires).with(byWire).with(hanging).with(func(s *setup) { s.src = 2 })},
	{"1+1+1 staged one copy, a mover", false, one(1, 1, movers|wires).with(rivals(1, 1)).with(byWire)},
	{"1+1 twins, a fault", false, one(1, 1, sidecars|comeBack|hosts).with(twins).with(askTwice)},
	{"1+1 staged twins, a fault", false, one(1, 1, sidecars|comeBack|hosts).with(byWire).with(twins)},
	{"1+1 twins, a host and a delay", true, one(1, 2, hosts|delays).with(twins)},
	{"2 twins, a process dies", false, one(1, 1, sidecars|comeBack).with(pair)},
	{"2 twins, one hand-off of two given up, a process dies", false, one(1, 1, sidecars|comeBack).with(pair).with(func(s *setup) { s.labels, s.gives = 2, true })},
	{"2 twins, a frozen host", false, one(1, 1, hosts).with(pair).with(frozen)},
	{"2 twins, a host", true, one(1, 1, hosts).with(pair)},
	{"1+1 twins asked twice, a host and a delay", true, one(1, 2, hosts|delays).with(twins).with(askTwice)},
	{"2 read by 1 twins, a process dies", true, one(1, 1, sidecars|comeBack).with(twins).with(func(s *setup) { s.src = 2 })},
	{"1 read by 2 twins, a process dies", true, one(2, 1, sidecars|comeBack).with(twins).with(func(s *setup) { s.src = 1 })},
	{"2 read by 1 twins, a frozen host", true, one(1, 1, hosts).with(twins).with(frozen).with(func(s *setup) { s.src = 2 })},
	{"1 read by 2 twins, a frozen host", true, one(2, 1, hosts).with(twins).with(frozen).with(func(s *setup) { s.src = 1 })},
	{"1+1 staged, two faults", true, one(1, 2, alive).with(byWire)},
	{"2+2 staged, no fault", true, one(2, 0, 0).with(byWire)},
	{"2+2 staged, a copy, mover or word", true, one(2, 1, local|wires).with(byWire)},
	{"2+2 staged, packs hang, a process dies", true, one(2, 1, processes|wires).with(byWire).with(hanging)},
	{"2 read by 1 staged, a delay or mover", true, one(1, 1, delays|local|wires).with(byWire).with(func(s *setup) { s.src = 2 })},
	{"1+1 staged two hand-offs, a fault", true, one(1, 1, alive).with(twoHands).with(byWire)},

	{"1+1, two faults, deaths last", true, one(1, 2, mortal|views)},
	{"1+1 that have not met, two faults", true, one(1, 2, alive).with(cold)},
	{"1+1 announced, two faults", true, one(1, 2, alive).with(early)},
	{"1+1 renewed, two faults", true, one(1, 2, alive).with(renewed)},
	{"1+1 asked again, two faults", true, one(1, 2, alive).with(func(s *setup) { s.retry = 1 })},
	{"1+1, three faults of the network and copies", true, one(1, 3, network|badCopies)},
	{"1+1 two hand-offs, a fault", true, one(1, 1, alive).with(twoHands)},
	{"1+1+1 one copy, a fault", true, one(1, 1, alive).with(rivals(1, 1))},
	{"1+1+1 two copies, a fault", true, one(1, 1, alive).with(rivals(1, 2))},
	{"2 read by 1, a fault", true, one(1, 1, alive).with(func(s *setup) { s.src = 2 })},
	{"1 read by 2, a fault", true, one(2, 1, alive).with(func(s *setup) { s.src = 1 })},
	{"2+2, a user, trainer or forger", true, one(2, 1, words)},
	{"2+2, a process dies for good", true, one(2, 1, processes)},
	{"2+2, a sidecar restarts", true, one(2, 1, sidecars|comeBack)},
	{"2+2, an engine's session ends", true, one(2, 1, sessions)},
	{"2+2, a word outlives its session", true, one(2, 1, lates)},
	{"2+2, a delay", true, one(2, 1, delays)},
	{"2+2 renewed, a delay", true, one(2, 1, delays).with(renewed)},
	{"2+2 two hand-offs, a mover or user", true, one(2, 1, movers|users).with(twoHands)},
	{"2+2+2 one copy", true, one(2, 0, 0).with(rivals(2, 1))},
	{"2+2+2 two copies", true, one(2, 0, 0).with(rivals(2, 2))},
	{"3+3, a copy, word or forger", true, one(3, 1, badCopies|twice|forgers)},
}
