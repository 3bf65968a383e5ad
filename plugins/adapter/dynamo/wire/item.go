package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// Item is one answer of a call: Data, which is an Annotated as a rule, or Final.
type Item struct {
	Data  Raw  `json:"data,omitempty"`
	Final bool `json:"complete_final"`
}

// Annotated is what an endpoint's item is wrapped in.
type Annotated struct {
	Data    Raw      `json:"data,omitempty"` // the item
	ID      string   `json:"id,omitempty"`
	Event   string   `json:"event,omitempty"` // EventError: Error is set
	Comment []string `json:"comment,omitempty"`
	Error   *Fault   `json:"error,omitempty"`
}

// EventError marks an item that is an error. It is the last one but the final.
const EventError = "error"

// Fault is an error of an endpoint. Class, Reason and Diagnostic are written since 1.6.
type Fault struct {
	Type       Type    `json:"error_type"`
	Class      string  `json:"class,omitempty"`
	Reason     string  `json:"reason,omitempty"`
	Message    string  `json:"message"`
	Diagnostic string  `json:"diagnostic,omitempty"`
	Public     *Public `json:"public,omitempty"` // what a client is shown; since 1.6
}

func (f *Fault) Error() string { return fmt.Sprintf("dynamo: %s: %s", f.Kind(), f.Message) }

// Public is the text of an error that clients are shown.
type Public struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// Type is an error's type: a name, or a name within Backend.
type Type struct {
	Name    string
	Backend bool
}

// Types that every tested Dynamo knows and that leave the instance in use: a client goes on
// calling it. A type that a client does not know breaks the whole answer. Others exist,
// which take the instance out of use.
const (
	Unknown           = "Unknown"
	InvalidArgument   = "InvalidArgument"
	Unavailable       = "Unavailable"
	Cancelled         = "Cancelled"
	ResourceExhausted = "ResourceExhausted"
)

// Classes say more than Unknown does, since 1.6. Each goes with one reason.
const (
	NotFound = "NotFound"
	Conflict = "Conflict"
)

// NewFault is an error of a type or a class, whose text callers are shown.
func NewFault(kind, text string) *Fault {
	f := &Fault{Type: Type{Name: kind}, Message: text, Public: &Public{Type: "message", Message: text}}
	if reason := map[string]string{NotFound: "request.not_found", Conflict: "request.conflict"}[kind]; reason != "" {
		f.Type.Name, f.Class, f.Reason, f.Diagnostic = Unknown, kind, reason, text
	}
	return f
}

// Kind is the class or the type.
func (f *Fault) Kind() string {
	if f.Class != "" {
		return f.Class
	}
	return f.Type.Name
}

func (t Type) String() string {
	if t.Backend {
		return "backend " + t.Name
	}
	return t.Name
}

type backend struct {
	Backend string `json:"Backend" msgpack:"Backend"`
}

// MarshalJSON implements json.Marshaler.
func (t Type) MarshalJSON() ([]byte, error) {
	if t.Backend {
		return json.Marshal(backend{t.Name})
	}
	return json.Marshal(t.Name)
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Type) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*t = Type{}
		return json.Unmarshal(b, &t.Name)
	}
	var in backend
	err := json.Unmarshal(b, &in)
	*t = Type{in.Backend, true}
	return err
}

// EncodeMsgpack implements msgpack.CustomEncoder.
func (t Type) EncodeMsgpack(e *msgpack.Encoder) error {
	if t.Backend {
		return e.Encode(backend{t.Name})
	}
	return e.EncodeString(t.Name)
}

// DecodeMsgpack implements msgpack.CustomDecoder.
func (t *Type) DecodeMsgpack(d *msgpack.Decoder) error {
	c, err := d.PeekCode()
	if err != nil {
		return err
	}
	if c >= 0x80 && c <= 0x8f || c == 0xde || c == 0xdf {
		var in backend
		err = d.Decode(&in)
		*t = Type{in.Backend, true}
		return err
	}
	*t = Type{}
	t.Name, err = d.DecodeString()
	return err
}

// AppendItem appends the message of one item, as its endpoint's codec writes it. Dynamo's
// own services answer with items that are not annotated.
func AppendItem(b []byte, c Codec, item []byte, annotated bool) ([]byte, error) {
	if len(item) > MaxMessage-twoPart-64 {
		return b, fmt.Errorf("%w: item of %d bytes, at most %d", ErrMalformed, len(item), MaxMessage-twoPart-64)
	}
	before, after := `{"data":`, `,"complete_final":false}`
	if annotated {
		before, after = `{"data":{"data":`, `},"complete_final":false}`
	}
	if c == Msgpack {
		before, after = "\x82\xa4data", "\xaecomplete_final\xc2"
		if annotated {
			before += "\x81\xa4data"
		}
	}
	at := len(b)
	b = append(append(b, make([]byte, twoPart)...), before...)
	b = append(append(b, item...), after...)
	binary.BigEndian.PutUint64(b[at+8:], uint64(len(b)-at-twoPart))
	return b, nil
}

// AppendFault appends the message of an error.
func AppendFault(b []byte, c Codec, f Fault) ([]byte, error) {
	a, err := c.Encode(Annotated{Event: EventError, Error: &f})
	if err != nil {
		return b, err
	}
	return AppendItem(b, c, a, false)
}

// AppendFinal appends the last item and the sentinel, after which the worker ends the
// connection.
func AppendFinal(b []byte, c Codec) []byte {
	final := `{"complete_final":true}`
	if c == Msgpack {
		final = "\x81\xaecomplete_final\xc3"
	}
	b = AppendTwoPart(b, TwoPart{Body: []byte(final)})
	return AppendTwoPart(b, TwoPart{Header: []byte(Sentinel)})
}
