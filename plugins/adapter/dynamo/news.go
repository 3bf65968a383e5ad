package dynamo

import (
	"slices"
	"sync"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// news is the newest state of the group and what happens in it, for any number of callers.
// A caller that is slow misses notices, and is told how many; it slows nobody.
type news struct {
	log *control.Log

	mu      sync.Mutex // guards:
	state   adapter.State
	exports map[string]handoff.Manifest // held, by label
	ids     map[handoff.ID]string       // their labels
	change  chan struct{}               // closes when exports changes
	over    bool
}

// kept is how many notices a slow caller may be behind.
const kept = 1024

func newNews() *news {
	return &news{log: control.NewLog(0, kept), exports: map[string]handoff.Manifest{}, ids: map[handoff.ID]string{}, change: make(chan struct{})}
}

// sync begins with a whole state.
func (n *news) sync(s adapter.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = s
}

// tell takes an update and returns the state after it.
func (n *news) tell(u adapter.Update) adapter.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = n.state.Apply(u)
	if u.Whole != nil { // of what was lost nothing is known
		n.log.Append(control.Notice{Kind: control.Gap, Lost: u.Lost})
	}
	for _, e := range u.Notices {
		n.log.Append(e)
		switch {
		case e.Kind == control.Exported && e.Manifest != nil:
			n.exports[e.Label], n.ids[e.ID] = *e.Manifest, e.Label
			n.signal()
		case e.Kind == control.Over:
			n.forget(e.ID)
		}
	}
	for _, id := range u.Gone {
		n.forget(id)
	}
	if u.Whole != nil && !u.Whole.More { // with More, what it does not show may be held too
		for id := range n.ids {
			if !slices.ContainsFunc(u.Whole.Handoffs, func(i control.Info) bool { return i.ID == id }) {
				n.forget(id)
			}
		}
	}
	return n.state
}

func (n *news) forget(id handoff.ID) {
	label, ok := n.ids[id]
	if !ok {
		return
	}
	delete(n.ids, id)
	if n.exports[label].ID == id {
		delete(n.exports, label)
	}
}

func (n *news) signal() {
	close(n.change)
	n.change = make(chan struct{})
}

// now is the newest state.
func (n *news) now() adapter.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state
}

// export is the manifest of a held export; else the channel that closes when there are
// others, nil when there will be none.
func (n *news) export(label string) (handoff.Manifest, bool, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m, ok := n.exports[label]
	if n.over {
		return m, ok, nil
	}
	return m, ok, n.change
}

// close ends whoever waits or watches.
func (n *news) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.over {
		n.over = true
		n.signal()
		n.log.Close()
	}
}
