package child

import (
	"context"
	"fmt"
	"io"
	"iter"
	"sync"

	"google.golang.org/grpc"

	"github.com/batonkv/baton/plugins/adapter"
	adapterv1 "github.com/batonkv/baton/proto/adapter/v1"
	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
)

// tell serves the adapter's reads of the prefix cache, one stream each, until ctx ends or the
// adapter serves no stream.
func tell(ctx context.Context, c adapterv1.AdapterClient, feed adapter.BlockFeed) {
	for ctx.Err() == nil && tellOnce(ctx, c, feed) {
	}
}

// tellOnce serves one read, and reports whether the adapter began it.
func tellOnce(ctx context.Context, c adapterv1.AdapterClient, feed adapter.BlockFeed) bool {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.Blocks(ctx)
	if err == nil {
		_, err = stream.Recv() // it reads
	}
	if err != nil { // the adapter's next call tells why
		cancel()
		return false
	}
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	go func() { // until the stream ends, which ends the read
		defer close(ended)
		for {
			if _, err := stream.Recv(); err != nil {
				cancel()
				return
			}
		}
	}()
	for e, err := range feed.Blocks(ctx) {
		if err != nil {
			break
		}
		p, err := codec.ToBlockEvent(e)
		if err != nil || stream.Send(&adapterv1.BlocksRequest{Event: p}) != nil {
			break
		}
	}
	return true
}

// feed is the adapter's side: what it reads comes on streams that the sidecar opened.
type feed struct {
	streams chan blockStream // of calls that wait for a reader

	mu      sync.Mutex // guards:
	reading bool
}

// blockStream is one that waits for its reader, or has it. Done is closed when that has ended.
type blockStream struct {
	grpc.BidiStreamingServer[adapterv1.BlocksRequest, adapterv1.BlocksResponse]
	done chan struct{}
}

func newFeed() *feed { return &feed{streams: make(chan blockStream)} }

// serve hands a stream to a reader and keeps it open until that has ended.
func (f *feed) serve(stream grpc.BidiStreamingServer[adapterv1.BlocksRequest, adapterv1.BlocksResponse]) error {
	s := blockStream{stream, make(chan struct{})}
	select {
	case f.streams <- s:
		<-s.done
	case <-stream.Context().Done():
	}
	return nil
}

// Blocks implements adapter.BlockFeed.
func (f *feed) Blocks(ctx context.Context) iter.Seq2[adapter.BlockEvent, error] {
	return func(yield func(adapter.BlockEvent, error) bool) {
		f.mu.Lock()
		busy := f.reading
		f.reading = true
		f.mu.Unlock()
		if busy {
			yield(adapter.BlockEvent{}, fmt.Errorf("%w: the blocks are read already: end that read first", handoff.ErrOrder))
			return
		}
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.reading = false
		}()
		select {
		case s := <-f.streams:
			defer close(s.done)
			if err := s.Send(&adapterv1.BlocksResponse{}); err != nil {
				yield(adapter.BlockEvent{}, ended(err))
				return
			}
			s.read(ctx, yield)
		case <-ctx.Done():
			yield(adapter.BlockEvent{}, ctx.Err())
		}
	}
}

// read yields what comes. A receive does not end with ctx, so it has a goroutine, which ends
// with the stream.
func (s blockStream) read(ctx context.Context, yield func(adapter.BlockEvent, error) bool) {
	type got struct {
		e   adapter.BlockEvent
		err error
	}
	events := make(chan got)
	go func() {
		for {
			var g got
			g.e, g.err = s.next()
			select {
			case events <- g:
			case <-s.done:
				return
			}
			if g.err != nil {
				return
			}
		}
	}()
	for {
		select {
		case g := <-events:
			if !yield(g.e, g.err) || g.err != nil {
				return
			}
		case <-ctx.Done():
			yield(adapter.BlockEvent{}, ctx.Err())
			return
		}
	}
}

func (s blockStream) next() (adapter.BlockEvent, error) {
	p, err := s.Recv()
	if err != nil {
		return adapter.BlockEvent{}, ended(err)
	}
	return codec.FromBlockEvent(p.GetEvent())
}

// ended says why a stream of the sidecar's is over.
func ended(err error) error {
	if err == io.EOF {
		return fmt.Errorf("%w: the sidecar ended the life of this adapter", handoff.ErrHost)
	}
	return fmt.Errorf("%w: %w", handoff.ErrHost, errs.FromStatus(err))
}
