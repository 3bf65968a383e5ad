package machine

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/engine/blockhash"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// The queue is the Waiting imports in their order of arrival. An import that finds no room
// holds nothing and keeps those behind it waiting, so that none is starved by smaller
// ones. One whose prompt has a block that another import brings is deferred: reserving it
// would take room for, and move, what is about to be in the cache. It is passed by, and has
// its old place when that import has ended. Nobody can wait in a circle: imports under way
// wait for copies, sources and engine steps, never for the queue, and each has an end.

// hash names the prompt's blocks. What tells prompts of equal tokens apart comes from the
// source: what a manifest says of it passed through clients.
func (m *Machine) hash(i *importing) error {
	a := m.engine.attach
	if err := m.checkEpoch(i); err != nil {
		return err
	}
	a.Model.WeightsEpoch = m.epoch()
	var err error
	if i.hashes, err = blockhash.Hashes(i.Import.Tokens, a.Capacity.BlockTokens, blockhash.For(a.Model, a.Weights, i.Opened.Salt)); err != nil {
		return fmt.Errorf("%w: %w", handoff.ErrEngine, err)
	}
	return nil
}

// checkEpoch compares the weights that made the state with the group's.
func (m *Machine) checkEpoch(i *importing) error {
	if !m.otherWeights(i.Opened.WeightsEpoch) {
		return nil
	}
	return fmt.Errorf("%w: source %d, this group %d", handoff.ErrWeights, i.Opened.WeightsEpoch, m.epoch())
}

// reserveNext decides Reserve for the first of the queue that is not deferred. One Reserve
// is under way at a time, so that nobody overtakes an import that finds no room.
func (m *Machine) reserveNext() {
	if m.lead.roster == nil || slices.ContainsFunc(m.lead.imports, func(i *importing) bool { return i.State() == handoff.Granting }) {
		return
	}
	for _, i := range m.lead.imports {
		if i.State() == handoff.Waiting && !m.deferred(i) {
			if m.lead.waits = !m.mayReserve(); !m.lead.waits && !i.full {
				m.reserve(i)
			}
			return
		}
	}
}

// freed: room came back, so that who found none asks again. It may cross a Reserve that is
// under way and find none for that reason alone.
func (m *Machine) freed() {
	m.lead.freed = true
	for _, i := range m.lead.imports {
		i.full = false
	}
	m.reserveNext()
}

// deferred reports whether i waits for a block that another import brings. The block is
// remembered: while it is on its way nothing else need be looked up.
func (m *Machine) deferred(i *importing) bool {
	if i.deferred != 0 && m.lead.brings[i.deferred] != nil {
		return true
	}
	i.deferred = 0
	for _, h := range i.hashes {
		if m.lead.brings[h] != nil {
			i.deferred = h
			return true
		}
	}
	return false
}

// bring reserves the hashes that i, which every rank holds, adds to the cache. Nobody else
// brings one of them: i would have been deferred.
func (m *Machine) bring(i *importing) {
	cached := int(i.Cached / m.engine.attach.Capacity.BlockTokens)
	for _, h := range i.hashes[min(max(cached, 0), len(i.hashes)):] {
		m.lead.brings[h] = i
	}
}

// brought ends the reservations of i: its blocks are in every rank's cache, or never will be.
func (m *Machine) brought(i *importing) {
	for _, h := range i.hashes {
		if m.lead.brings[h] == i {
			delete(m.lead.brings, h)
		}
	}
}

func (m *Machine) reserve(i *importing) {
	g := m.lead.groups[i.Source]
	if g == nil {
		m.failImport(i, fmt.Errorf("%w: the geometry of group %s was lost", handoff.ErrPeer, i.Source.Group))
		return
	}
	for _, p := range m.lead.roster.Members {
		if m.lead.shown[p] == nil {
			m.lead.shown[p] = map[handoff.Digest]bool{}
		}
		if len(m.lead.shown[p]) >= maxGeometries {
			clear(m.lead.shown[p]) // the rank makes room likewise
		}
		if !m.lead.shown[p][g.digest] {
			m.lead.shown[p][g.digest] = true
			m.do(ToPeer{p, g.geometry})
		}
	}
	o := i.Opened
	n := m.decideAll(handoff.Decision{Kind: handoff.Reserve, ID: i.ID(), Attempt: i.Attempt, Label: i.Import.Label,
		Tokens: o.Tokens, Hashes: i.hashes, Position: o.Position, Resume: o.Resume, Extent: o.Extent,
		Plan: i.Plan, Source: g.digest, Members: o.Members, Sources: o.Pins})
	i.Reserve(n, m.now)
	m.lead.freed = false
	m.publish(events.Reserved, events.Event{Handoff: i.ID().String(), Label: i.Import.Label, Peer: i.Source.String()})
}
