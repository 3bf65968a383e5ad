// Package client calls a sidecar's control service. Errors are the service's own:
// errors.Is finds their sentinels. A call that broke after it was sent is
// handoff.ErrInDoubt when it changes something, handoff.ErrPeer when it only asks.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/batonkv/baton/proto/codec"
	controlv1 "github.com/batonkv/baton/proto/control/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Client is a connection to one sidecar. Safe for concurrent use. It implements
// control.Service.
type Client struct {
	conn *grpc.ClientConn
	c    controlv1.ControlClient
	line *line
}

var _ control.Service = (*Client)(nil)

// Dial prepares calls to addr; the connection is made at the first one. config shows a
// certificate of control/… or admin/… and verifies the sidecar's.
func Dial(addr string, config *tls.Config) (*Client, error) {
	if config == nil {
		return nil, fmt.Errorf("%w: dial %s: no TLS configuration", handoff.ErrPeer, addr)
	}
	l := &line{addr: addr}
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(l.credentials(config)), grpc.WithContextDialer(l.dial),
		grpc.WithUnaryInterceptor(l.call), grpc.WithStreamInterceptor(l.stream),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(codec.MaxMessage), grpc.MaxCallSendMsgSize(codec.MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		// No retries: an import that was sent twice would be two.
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry())
	if err != nil {
		return nil, fmt.Errorf("%w: dial %s: %w", handoff.ErrPeer, addr, err)
	}
	return &Client{conn, controlv1.NewControlClient(conn), l}, nil
}

// Close ends the connection and the calls on it.
func (c *Client) Close() error { return c.conn.Close() }

// failed reads an error of a call. What the sidecar did not say itself is broken, but
// for a refusal before the call began.
func failed(ctx context.Context, err, broken error) error {
	if err == nil {
		return nil
	}
	if u, ok := err.(*unsent); ok {
		return u.why
	}
	said := errs.FromStatus(err)
	if errs.Spoken(said) && !strings.HasPrefix(errs.Name(said), "context.") {
		return said
	}
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated:
		return fmt.Errorf("%w: %w", handoff.ErrDenied, said)
	case codes.Unimplemented:
		return fmt.Errorf("%w: the sidecar is of a release without this call: %w", handoff.ErrVersion, said)
	}
	if cerr := errs.Ended(ctx, err); cerr != nil && !errors.Is(said, cerr) {
		said = fmt.Errorf("%w: %w", cerr, said)
	}
	return fmt.Errorf("%w: %w", broken, said)
}

// Import returns when the hand-off was admitted, or with the reason why not.
// ErrInDoubt: it may have been admitted, Get tells.
func (c *Client) Import(ctx context.Context, m handoff.Import) (handoff.Imported, error) {
	p, err := codec.ToImport(m)
	if err != nil {
		return handoff.Imported{}, err
	}
	r, err := c.c.Import(ctx, &controlv1.ImportRequest{ImportRequest: p})
	if err != nil {
		return handoff.Imported{}, failed(ctx, err, handoff.ErrInDoubt)
	}
	return codec.FromImported(r.GetImported())
}

// Get tells what the sidecar knows of a hand-off.
func (c *Client) Get(ctx context.Context, id handoff.ID) (control.Info, error) {
	p, err := codec.ToID(id)
	if err != nil {
		return control.Info{}, err
	}
	r, err := c.c.Get(ctx, &controlv1.GetRequest{Id: p})
	if err != nil {
		return control.Info{}, failed(ctx, err, handoff.ErrPeer)
	}
	return control.DecodeInfo(r)
}

// Abort asks to end an import: that of key, or any of id when key is zero. ErrInDoubt: it may
// have been ended, Get tells.
func (c *Client) Abort(ctx context.Context, id handoff.ID, key handoff.Key) error {
	p, err := codec.ToID(id)
	if err != nil {
		return err
	}
	q := &controlv1.AbortRequest{Id: p}
	if key != (handoff.Key{}) {
		q.Key = key[:]
	}
	_, err = c.c.Abort(ctx, q)
	return failed(ctx, err, handoff.ErrInDoubt)
}

// Release gives up a manifest that nobody will import. ErrInDoubt: ask again.
func (c *Client) Release(ctx context.Context, id handoff.ID, key handoff.Key) error {
	p, err := codec.ToID(id)
	if err != nil {
		return err
	}
	_, err = c.c.Release(ctx, &controlv1.ReleaseRequest{Id: p, Key: key[:]})
	return failed(ctx, err, handoff.ErrInDoubt)
}

// SetWeightsEpoch tells the group of this leader that its weights are those of epoch from
// here on. ErrInDoubt: ask again.
func (c *Client) SetWeightsEpoch(ctx context.Context, epoch uint64) error {
	_, err := c.c.SetWeightsEpoch(ctx, &controlv1.SetWeightsEpochRequest{Epoch: epoch})
	return failed(ctx, err, handoff.ErrInDoubt)
}

// Reset gives up every hand-off of the group of this leader. ErrQuiet names what may still
// be touched: ask again, as after ErrInDoubt.
func (c *Client) Reset(ctx context.Context) error {
	_, err := c.c.Reset(ctx, &controlv1.ResetRequest{})
	return failed(ctx, err, handoff.ErrInDoubt)
}

// Status describes the sidecar and its group.
func (c *Client) Status(ctx context.Context) (control.Status, error) {
	r, err := c.c.Status(ctx, &controlv1.StatusRequest{})
	if err != nil {
		return control.Status{}, failed(ctx, err, handoff.ErrPeer)
	}
	return control.DecodeStatus(r)
}

// List tells what the sidecar knows of all hand-offs, a page at a time.
func (c *Client) List(ctx context.Context, q control.Query) (control.Page, error) {
	p, err := control.EncodeQuery(q)
	if err != nil {
		return control.Page{}, err
	}
	r, err := c.c.List(ctx, p)
	if err != nil {
		return control.Page{}, failed(ctx, err, handoff.ErrPeer)
	}
	return control.DecodePage(r)
}

// Geometry tells the model and shards of the group of this leader.
func (c *Client) Geometry(ctx context.Context) (control.Geometry, error) {
	r, err := c.c.Geometry(ctx, &controlv1.GeometryRequest{})
	if err != nil {
		return control.Geometry{}, failed(ctx, err, handoff.ErrPeer)
	}
	return control.DecodeGeometry(r)
}

// Do passes an action to every engine of the group of this leader. ErrInDoubt: it may have
// been carried out, by some or by all; it may be asked for again.
func (c *Client) Do(ctx context.Context, a handoff.Action) error {
	p, err := codec.ToAction(a)
	if err != nil {
		return err
	}
	_, err = c.c.Lifecycle(ctx, &controlv1.LifecycleRequest{Action: p})
	return failed(ctx, err, handoff.ErrInDoubt)
}

// Drain stops the intake of the group of this leader, or resumes it.
// ErrInDoubt: ask again.
func (c *Client) Drain(ctx context.Context, resume bool) (control.Drain, error) {
	r, err := c.c.Drain(ctx, &controlv1.DrainRequest{Resume: resume})
	if err != nil {
		return control.Drain{}, failed(ctx, err, handoff.ErrInDoubt)
	}
	return control.DecodeDrain(r)
}

// Links tells how the sidecar's rank reads from ranks of other groups.
func (c *Client) Links(ctx context.Context, q control.LinksQuery) (control.Links, error) {
	r, err := c.c.Links(ctx, &controlv1.LinksRequest{Probe: q.Probe, Meet: q.Meet})
	if err != nil {
		return control.Links{}, failed(ctx, err, handoff.ErrPeer)
	}
	return control.DecodeLinks(r)
}

// Watch yields notices from a cursor on until ctx ends or the sidecar stops. A non-nil
// error is the last item: watch again from the cursor after the last notice.
func (c *Client) Watch(ctx context.Context, from control.Cursor) iter.Seq2[control.Notice, error] {
	return func(yield func(control.Notice, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		notices, err := c.OpenWatch(ctx, from)
		if err != nil {
			yield(control.Notice{}, err)
			return
		}
		notices(yield)
	}
}

// OpenWatch is Watch of a sidecar that is reached: an error says that it is not. The caller
// ends ctx.
func (c *Client) OpenWatch(ctx context.Context, from control.Cursor) (iter.Seq2[control.Notice, error], error) {
	stream, err := c.c.Watch(ctx, &controlv1.WatchRequest{From: from.Seq, Incarnation: uint64(from.Incarnation)})
	if err != nil {
		return nil, failed(ctx, err, handoff.ErrPeer)
	}
	return func(yield func(control.Notice, error) bool) {
		for {
			p, err := stream.Recv()
			var n control.Notice
			if err == nil {
				n, err = control.DecodeNotice(p)
			}
			switch {
			case err == io.EOF:
				return
			case err != nil:
				yield(control.Notice{}, failed(ctx, err, handoff.ErrPeer))
				return
			case !yield(n, nil):
				return
			}
		}
	}, nil
}
