// Package directory is Dynamo's discovery: which records there are and under which keys
// (record.go), how a set of them is kept in place (Keeper), and the backends etcd and file.
//
// A record of a live process is there as long as its lease. A Keeper's records come back
// under the same instance id when a lease was lost, or the whole backend: Dynamo's clients
// see a removal and an addition, not another instance.
package directory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"strconv"
	"strings"
)

// Errors of backends.
var (
	ErrDown  = errors.New("dynamo directory: not reachable")
	ErrTaken = errors.New("dynamo directory: key holds something else")
	ErrName  = errors.New("dynamo directory: bad name")
)

// Buckets are the first segments of keys.
const (
	Instances = "v1/instances/"
	Models    = "v1/mdc/"
	Channels  = "v1/event_channels/"
	Sources   = "v1/event_sources/"
)

// MaxRecord bounds a value that is read; larger ones are passed over.
const MaxRecord = 1 << 20

// Record is one key and its JSON.
type Record struct {
	Key   string
	Value []byte
}

// Snapshot is what a backend holds under a prefix, sorted by key.
type Snapshot []Record

// Lease holds records. Lost is closed when it has ended unasked: its records are gone, or
// will be. Its owner calls End once, which removes what is left of it.
type Lease interface {
	// Put creates a record, or takes over one of the same key and value; ErrTaken when the
	// key holds another value.
	Put(ctx context.Context, r Record) error
	// Delete removes a record that this lease put; it leaves what another has put since.
	Delete(ctx context.Context, key string) error
	Lost() <-chan struct{}
	End(ctx context.Context) error
}

// Backend is where records are. Safe for concurrent use.
type Backend interface {
	Lease(ctx context.Context) (Lease, error)
	// Watch yields what there is under a prefix, and again after each change, newest wins. A
	// non-nil error is the last item: watch again.
	Watch(ctx context.Context, prefix string) iter.Seq2[Snapshot, error]
	Close() error
}

// Endpoint names one endpoint of a deployment.
type Endpoint struct {
	Namespace string `json:"namespace"` // names joined by dots
	Component string `json:"component"`
	Name      string `json:"name"`
}

var word = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

// CheckName says whether s may name a component or an endpoint. Dynamo's own programs read
// other names back as something else, or not at all.
func CheckName(field, s string) error {
	if !word.MatchString(s) {
		return fmt.Errorf("%w: %s %.80q: want 1 to 63 of a-z, 0-9, - and _", ErrName, field, s)
	}
	return nil
}

// Check says which name is wrong.
func (e Endpoint) Check() error {
	errs := []error{CheckName("component", e.Component), CheckName("endpoint", e.Name)}
	if len(e.Namespace) > 255 {
		errs = append(errs, fmt.Errorf("%w: namespace of %d bytes, at most 255", ErrName, len(e.Namespace)))
	}
	for _, part := range strings.Split(e.Namespace, ".") {
		if !word.MatchString(part) {
			errs = append(errs, fmt.Errorf("%w: namespace %.80q: want names joined by dots, each 1 to 63 of a-z, 0-9, - and _", ErrName, e.Namespace))
			break
		}
	}
	return errors.Join(errs...)
}

// path is e within a key, and in what an instance is called by.
func (e Endpoint) path() string { return e.Namespace + "/" + e.Component + "/" + e.Name }

// String is e as Dynamo's programs are given it.
func (e Endpoint) String() string { return e.Namespace + "." + e.Component + "." + e.Name }

// Instance is one endpoint of one process. Codec is json or msgpack; absent is json.
type Instance struct {
	Type      string    `json:"type,omitempty"` // "Endpoint"; absent in a recovery target
	Component string    `json:"component"`
	Endpoint  string    `json:"endpoint"`
	Namespace string    `json:"namespace"`
	ID        uint64    `json:"instance_id"`
	Transport Transport `json:"transport"`
	Device    string    `json:"device_type,omitempty"`
	Codec     string    `json:"request_plane_codec,omitempty"`
}

// Transport says how an instance is called; exactly one is set.
type Transport struct {
	TCP  string `json:"tcp,omitempty"`      // ip:port/path
	NATS string `json:"nats_tcp,omitempty"` // subject
}

// NewInstance is an endpoint of id, called over TCP at an ip:port; without one, over NATS.
func NewInstance(e Endpoint, id uint64, addr, codec string) Instance {
	i := Instance{Type: "Endpoint", Component: e.Component, Endpoint: e.Name, Namespace: e.Namespace, ID: id, Device: "cpu", Codec: codec}
	hex := strconv.FormatUint(id, 16)
	if addr == "" {
		i.Transport.NATS = strings.ReplaceAll(e.Namespace, ".", "_") + "_" + e.Component + "." + e.Name + "-" + hex
	} else {
		i.Transport.TCP = addr + "/" + hex + "/" + e.path()
	}
	return i
}

// Record is i in the directory.
func (i Instance) Record() (Record, error) {
	e := Endpoint{i.Namespace, i.Component, i.Endpoint}
	return encode(Instances+e.path(), i.ID, i, e.Check())
}

// Called is how an instance is called: over TCP at an ip:port, where path is by which its server
// tells it from others; over NATS without one, where path is the subject.
func (i Instance) Called() (addr, path string, ok bool) {
	if i.Transport.NATS != "" {
		return "", i.Transport.NATS, true
	}
	addr, path, _ = strings.Cut(i.Transport.TCP, "/")
	return addr, path, addr != ""
}

// Path is that of Called: a server handles it.
func (i Instance) Path() string {
	_, path, _ := i.Called()
	return path
}

// Model is a model card: it makes an instance a worker that routers route to.
type Model struct {
	Type      string          `json:"type"` // "Model"
	Namespace string          `json:"namespace"`
	Component string          `json:"component"`
	Endpoint  string          `json:"endpoint"`
	ID        uint64          `json:"instance_id"`
	Card      json.RawMessage `json:"card_json"`
}

// NewModel is a card for e, of the instance id.
func NewModel(e Endpoint, id uint64, card json.RawMessage) Model {
	return Model{Type: "Model", Namespace: e.Namespace, Component: e.Component, Endpoint: e.Name, ID: id, Card: card}
}

// Group is the Baton group that the card names, "" for none.
func (m Model) Group() (group string) {
	var card struct {
		Runtime struct {
			Data map[string]json.RawMessage `json:"runtime_data"`
		} `json:"runtime_config"`
	}
	if json.Unmarshal(m.Card, &card) != nil || json.Unmarshal(card.Runtime.Data["baton_group"], &group) != nil {
		return ""
	}
	return group
}

// Record is m in the directory.
func (m Model) Record() (Record, error) {
	e := Endpoint{m.Namespace, m.Component, m.Endpoint}
	return encode(Models+e.path(), m.ID, m, e.Check())
}

// Scope is what an event channel or source belongs to: an endpoint.
type Scope struct {
	Kind     string   `json:"kind"` // "endpoint"
	Endpoint Endpoint `json:"endpoint"`
}

// Channel says how a publisher's events are heard.
type Channel struct {
	Type      string           `json:"type"` // "EventChannel"
	Scope     Scope            `json:"scope"`
	Topic     string           `json:"topic"`
	ID        uint64           `json:"instance_id"` // of the publisher
	Transport ChannelTransport `json:"transport"`
}

// ChannelTransport is NATS with a prefix of subjects, or ZMQ with an address.
type ChannelTransport struct {
	Kind   string        `json:"kind"` // "Nats", "Zmq"
	Config ChannelConfig `json:"config"`
}

// ChannelConfig has the field of its kind.
type ChannelConfig struct {
	Prefix   string `json:"subject_prefix,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
}

// Source says whose state a publisher's events tell, and who tells what was missed.
type Source struct {
	Type     string         `json:"type"` // "EventSource"
	Scope    Scope          `json:"scope"`
	Topic    string         `json:"topic"`
	ID       uint64         `json:"publisher_id"`
	Metadata SourceMetadata `json:"metadata"`
}

// SourceMetadata is of KV events.
type SourceMetadata struct {
	State     Endpoint  `json:"kv_state_endpoint"`
	Worker    Worker    `json:"worker"`
	Publisher uint64    `json:"publisher_id"`
	Recovery  *Instance `json:"recovery_target,omitempty"` // nil: what is lost stays lost
}

// Worker is one data-parallel rank of a worker.
type Worker struct {
	ID   uint64 `json:"worker_id"`
	Rank uint32 `json:"dp_rank"`
}

// SubjectPrefix begins the NATS subjects of an endpoint's events.
func SubjectPrefix(e Endpoint) string {
	return "namespace." + escape(e.Namespace) + ".component." + escape(e.Component) + ".endpoint." + escape(e.Name)
}

// NewChannel is a channel of e's events over NATS, for a publisher.
func NewChannel(e Endpoint, topic string, publisher uint64) Channel {
	return Channel{Type: "EventChannel", Scope: Scope{"endpoint", e}, Topic: topic, ID: publisher,
		Transport: ChannelTransport{Kind: "Nats", Config: ChannelConfig{Prefix: SubjectPrefix(e)}}}
}

// NewZMQChannel is a channel of e's events that a PUB socket at an ip:port sends.
func NewZMQChannel(e Endpoint, topic string, publisher uint64, addr string) Channel {
	return Channel{Type: "EventChannel", Scope: Scope{"endpoint", e}, Topic: topic, ID: publisher,
		Transport: ChannelTransport{Kind: "Zmq", Config: ChannelConfig{Endpoint: "tcp://" + addr}}}
}

// NewSource is the source of what a worker's cache holds, under e.
func NewSource(e Endpoint, topic string, publisher uint64, w Worker, recovery *Instance) Source {
	if recovery != nil {
		target := *recovery
		target.Type = ""
		recovery = &target
	}
	return Source{Type: "EventSource", Scope: Scope{"endpoint", e}, Topic: topic, ID: publisher,
		Metadata: SourceMetadata{State: e, Worker: w, Publisher: publisher, Recovery: recovery}}
}

// Record is c in the directory.
func (c Channel) Record() (Record, error) {
	return encode(Channels+events(c.Scope.Endpoint, c.Topic), c.ID, c, c.Scope.Endpoint.Check())
}

// Record is s in the directory.
func (s Source) Record() (Record, error) {
	return encode(Sources+events(s.Scope.Endpoint, s.Topic), s.ID, s, s.Scope.Endpoint.Check())
}

// SourcesOf begins the keys of the sources of a topic under e.
func SourcesOf(e Endpoint, topic string) string { return Sources + events(e, topic) + "/" }

func events(e Endpoint, topic string) string {
	return "namespace/" + escape(e.Namespace) + "/component/" + escape(e.Component) + "/endpoint/" + escape(e.Name) + "/topic/" + escape(topic)
}

// encode is a record whose key ends with id.
func encode(key string, id uint64, v any, err error) (Record, error) {
	if err != nil {
		return Record{}, err
	}
	b, err := json.Marshal(v)
	return Record{key + "/" + strconv.FormatUint(id, 16), b}, err
}

// escape writes all but letters, digits, - and _ as %XX.
func escape(s string) string { return percent(s, "-_") }

// percent writes all but letters, digits and the characters of keep as %XX.
func percent(s, keep string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(keep, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
