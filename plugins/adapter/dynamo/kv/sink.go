package kv

import (
	"context"
	"encoding/binary"
	"net/netip"

	natsgo "github.com/nats-io/nats.go"

	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/zmtp"
)

// Sink brings messages to whoever listens. Send may wait a while, until ctx ends, for those
// that are behind; an error says that nobody can have heard it. Lost counts the messages that
// did not reach one who listens, and is behind.
type Sink interface {
	Send(ctx context.Context, publisher, sequence uint64, message []byte) error
	Lost() uint64
	Channel(publisher uint64) directory.Channel
	Close()
}

// OverNATS is a Sink for events of e. The connection stays its owner's.
func OverNATS(nc *natsgo.Conn, e directory.Endpoint) Sink {
	return natsSink{nc, e, directory.SubjectPrefix(e) + "." + Topic}
}

type natsSink struct {
	nc      *natsgo.Conn
	e       directory.Endpoint
	subject string
}

func (s natsSink) Send(_ context.Context, _, _ uint64, message []byte) error {
	return s.nc.Publish(s.subject, message)
}

// Lost is 0: what a server does not deliver is not known here.
func (s natsSink) Lost() uint64 { return 0 }

func (s natsSink) Channel(publisher uint64) directory.Channel {
	return directory.NewChannel(s.e, Topic, publisher)
}

func (s natsSink) Close() {}

// OverZMQ is a Sink for events of e: a socket of its own at ip, which subscribers dial at
// advertise.
func OverZMQ(e directory.Endpoint, ip, advertise netip.Addr) (Sink, error) {
	p, err := zmtp.Bind(netip.AddrPortFrom(ip, 0).String())
	if err != nil {
		return nil, err
	}
	return zmqSink{p, e, netip.AddrPortFrom(advertise, p.Addr().Port()).String()}, nil
}

type zmqSink struct {
	pub  *zmtp.Pub
	e    directory.Endpoint
	addr string
}

// framed is the version of what is before an event in its frame.
const framed = 1

func (s zmqSink) Send(ctx context.Context, publisher, sequence uint64, message []byte) error {
	s.pub.Send(ctx, framesOf(publisher, sequence, message)...)
	return nil
}

func (s zmqSink) Lost() uint64 { return s.pub.Lost() }

// framesOf are the frames of a message over ZMQ.
func framesOf(publisher, sequence uint64, message []byte) [][]byte {
	b := binary.BigEndian.AppendUint32([]byte{framed}, uint32(len(message)))
	return [][]byte{[]byte(Topic), binary.BigEndian.AppendUint64(nil, publisher), binary.BigEndian.AppendUint64(nil, sequence), append(b, message...)}
}

func (s zmqSink) Channel(publisher uint64) directory.Channel {
	return directory.NewZMQChannel(s.e, Topic, publisher, s.addr)
}

func (s zmqSink) Close() { s.pub.Close() }
