package kv

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
)

// records are those of a source: the source itself comes last, when all that it names is
// there.
func (t *Teller) records(n *told, of directory.Worker) (all []directory.Record, err error) {
	var target *directory.Instance
	if !t.cfg.Live {
		e := t.cfg.State
		e.Name = fmt.Sprintf("worker_kv_query_source_%x", n.publisher) // as Dynamo's own are called
		i := directory.NewInstance(e, t.cfg.ID, t.cfg.Addr, t.cfg.Codec)
		n.path, target = i.Path(), &i
		all, err = put(all, err, i)
	}
	all, err = put(all, err, n.sink.Channel(n.publisher))
	return put(all, err, directory.NewSource(t.cfg.State, Topic, n.publisher, of, target))
}

func put(all []directory.Record, err error, v interface {
	Record() (directory.Record, error)
}) ([]directory.Record, error) {
	if err != nil {
		return nil, err
	}
	r, err := v.Record()
	return append(all, r), err
}

// watch reads the directory until ctx ends.
func (t *Teller) watch(ctx context.Context, prefix string, read func(directory.Snapshot)) {
	for {
		for s, err := range t.cfg.Backend.Watch(ctx, prefix) {
			if err != nil {
				break // the keeper says that the directory is away
			}
			t.mu.Lock()
			read(s)
			t.mu.Unlock()
			t.poke()
		}
		if !pause.For(ctx, tryAgain) {
			return
		}
	}
}

// cards finds the workers of the group: their cards name it, and say that their KV events
// come from here.
func (t *Teller) cards(all directory.Snapshot) {
	t.workers = map[directory.Worker]int32{}
	for _, r := range all {
		var m directory.Model
		var card struct {
			Block   int32 `json:"kv_cache_block_size"`
			Runtime struct {
				State directory.Endpoint `json:"kv_state_endpoint"`
				Start uint32             `json:"data_parallel_start_rank"`
			} `json:"runtime_config"`
		}
		if json.Unmarshal(r.Value, &m) != nil || json.Unmarshal(m.Card, &card) != nil || card.Runtime.State != t.cfg.State || m.Group() != t.cfg.Group {
			continue
		}
		if len(t.workers) < maxSources {
			t.workers[directory.Worker{ID: m.ID, Rank: card.Runtime.Start}] = card.Block
		}
	}
}

// foreign finds sources that are not this one's.
func (t *Teller) foreign(all directory.Snapshot) {
	t.others = map[directory.Worker]uint64{}
	for _, r := range all {
		var s directory.Source
		if json.Unmarshal(r.Value, &s) != nil {
			continue
		}
		w := s.Metadata.Worker
		if n := t.sources[w]; n != nil && n.publisher == s.ID {
			continue
		}
		if lowest, ok := t.others[w]; !ok || s.ID < lowest {
			t.others[w] = s.ID
		}
	}
}
