package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/examples/engine/model"
)

// TestFrontendOverNATS: a deployment whose request plane is NATS, with KV events over ZMQ: answers
// by a hand-off, and a refusal whose hand-off a worker releases over NATS.
func TestFrontendOverNATS(t *testing.T) {
	python := dynamoPython(t)
	n, err := servers.StartNATS(bounded(t), servers.NATSConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	d := deployWith(t, fmt.Sprintf("request-plane: nats\nnats: {urls: ['%s']}\nkv: {events: zmq}\n", n.URL()), twoToOne, "hybrid")
	f := d.front(python, "kv", "DYN_REQUEST_PLANE=nats", "NATS_SERVER="+n.URL())
	before := f.handoffs()
	for i, stream := range []bool{false, true} {
		prompt := text(i, 50+20*i)
		got, finish := f.complete("completions", ask{Prompt: prompt, Max: maxNew, Stream: stream, Logprobs: 1, AsIDs: true})
		if want := f.whole(model.Encode(prompt)); !slices.Equal(got, want) || finish == "" {
			t.Errorf("completion, stream %v: %v %s, want %v", stream, got, finish, want)
		}
	}
	if after := f.handoffs(); after[0]-before[0] != 2 || after[1]-before[1] != 2 {
		t.Errorf("2 requests: the workers' hand-offs went from %v to %v", before, after)
	}
	f.ended()
	f.refused(http.StatusBadRequest, "max_tokens", ask{Prompt: text(3, 60), Max: 1<<12 + 1})
	f.ended() // long before its lease
}
