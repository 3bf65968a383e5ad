package kv

import (
	"encoding/binary"
	"net/netip"

	natsgo "github.com/nats-io/nats.go"

	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/zmtp"
)

// Sink brings messages to whoever listens. Send waits for nobody; an error says that nobody
// can have heard it.
type Sink interface {
	Send(publisher, sequence uint64, message []byte) error
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

func (s natsSink) Send(_, _ uint64, message []byte) error { return s.nc.Publish(s.subject, message) }

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

func (s zmqSink) Send(publisher, sequence uint64, message []byte) error {
	s.pub.Send(framesOf(publisher, sequence, message)...)
	return nil
}

// framesOf are the frames of a message over ZMQ.
func framesOf(publisher, sequence uint64, message []byte) [][]byte {
	b := binary.BigEndian.AppendUint32([]byte{framed}, uint32(len(message)))
	return [][]byte{[]byte(Topic), binary.BigEndian.AppendUint64(nil, publisher), binary.BigEndian.AppendUint64(nil, sequence), append(b, message...)}
}

func (s zmqSink) Channel(publisher uint64) directory.Channel {
	return directory.NewZMQChannel(s.e, Topic, publisher, s.addr)
}

func (s zmqSink) Close() { s.pub.Close() }
